/** Page to show, which is the part of the URL after `#/`, such as `runs/wf_1` or `runs?status=failed`. */
import { signal } from "@preact/signals";

const FIRST = "ask";

function now(): string {
  try {
    const [path = "", ...query] = location.hash.replace(/^#\/?/, "").split("?");
    return [decodeURI(path) || FIRST, ...query].join("?");
  } catch { // not a URL of the console, such as #/%
    return FIRST;
  }
}

export const route = signal(now());
addEventListener("hashchange", () => (route.value = now()));

export function go(path: string): void {
  location.hash = `#/${path}`;
}

/** Return the parts of the path of the page. */
export function parts(): string[] {
  return route.value.split("?", 1)[0]!.split("/");
}

/** Return the parameters of the page, such as the filter of a list. */
export function parameters(): URLSearchParams {
  return new URLSearchParams(route.value.split("?").slice(1).join("?"));
}

/** Change the parameters of the page without a new entry in the browser's history. */
export function setParameters(values: Record<string, string>): void {
  const set = Object.entries(values).filter(([, value]) => value);
  const text = new URLSearchParams(set).toString();
  history.replaceState(null, "", `#/${parts().join("/")}${text ? `?${text}` : ""}`);
  route.value = now();
}
