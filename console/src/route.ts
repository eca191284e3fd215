/** Which page is shown: what stands after `#/` in the address. */
import { signal } from "@preact/signals";

function now(): string {
  try {
    return decodeURI(location.hash.replace(/^#\/?/, "")) || "ask";
  } catch { // no address of ours, such as #/%
    return "ask";
  }
}

export const route = signal(now());
addEventListener("hashchange", () => (route.value = now()));

export function go(path: string): void {
  location.hash = `#/${path}`;
}
