/** Page to show, which is the part of the URL after `#/`. */
import { signal } from "@preact/signals";

function now(): string {
  try {
    return decodeURI(location.hash.replace(/^#\/?/, "")) || "ask";
  } catch { // not a URL of the console, such as #/%
    return "ask";
  }
}

export const route = signal(now());
addEventListener("hashchange", () => (route.value = now()));

export function go(path: string): void {
  location.hash = `#/${path}`;
}
