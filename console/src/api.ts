/** The HTTP API: one place that knows the key. It is kept in memory, and in this tab's storage where its user wants
 * that; never in an address, a cookie or `localStorage`. */
import { signal } from "@preact/signals";

const KEPT = "podium.key";
/** The key that every request is sent with; empty where the server asks for none. */
export const key = signal(sessionStorage.getItem(KEPT) ?? "");
/** How often another key was entered: what one key was shown is read again with the next. */
export const keyChanges = signal(0);

/** Use a key from now on.
 *
 * @param keeps whether a reload of this tab is to find it again.
 */
export function useKey(text: string, keeps: boolean): void {
  key.value = text.trim();
  needsKey.value = "";
  keyChanges.value += 1;
  if (keeps && key.value) sessionStorage.setItem(KEPT, key.value);
  else sessionStorage.removeItem(KEPT);
}

/** Whether the server has refused a request for want of a key, or of a better one. */
export const needsKey = signal("");

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null,
  ) {
    super(message);
  }
}

/** Headers of a request; a key is in no address, because addresses are logged. */
export function headers(more: Record<string, string> = {}): Record<string, string> {
  return key.value ? { authorization: `Bearer ${key.value}`, ...more } : more;
}

/** The answer to a request, whose status says that it went well.
 *
 * @throws {ApiError} with the server's own words, where it did not.
 */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const given = (init.headers ?? {}) as Record<string, string>;
  const answer = await fetch(path, { ...init, headers: headers(given), cache: "no-store" });
  if (answer.ok) return answer;
  const error = await answer
    .json()
    .then((body: { error?: { message?: string; param?: string | null } }) => body.error)
    .catch(() => undefined);
  const later = answer.headers.get("retry-after");
  const message = (error?.message ?? `The server answered ${answer.status}.`) + (later ? ` Try again in ${later} s.` : "");
  if (answer.status === 401) {
    // How a program sends a key is of no use to who reads this page.
    needsKey.value = message.split(" Send a key as")[0] ?? message;
    throw new ApiError(401, "Enter a key of this server at the top of the page.", null);
  }
  throw new ApiError(answer.status, message, error?.param ?? null);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await send(path, signal ? { signal } : {})).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown, method = "POST"): Promise<T> {
  const content = body === undefined ? {} : { body: JSON.stringify(body) };
  const answer = await send(path, { method, ...content, headers: { "content-type": "application/json" } });
  return answer.json() as Promise<T>;
}

/** What went wrong, for people. */
export function words(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return "The server cannot be reached. Is it running?";
  return error instanceof Error ? error.message : String(error);
}
