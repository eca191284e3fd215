/** Which page is shown: what stands after `#/` in the address. */
import { signal } from "@preact/signals";

const now = () => decodeURI(location.hash.replace(/^#\/?/, "")) || "ask";

export const route = signal(now());
addEventListener("hashchange", () => (route.value = now()));

export function go(path: string): void {
  location.hash = `#/${path}`;
}
