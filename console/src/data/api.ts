/** Client of the HTTP API, and the only module that has the API key. The key is kept in memory, and in this tab's
 * `sessionStorage` if the user chooses so. It is never in a URL, a cookie or `localStorage`. */
import { signal } from "@preact/signals";

const KEPT = "podium.key";
/** API key sent with every request, or "" to send none. */
export const key = signal(sessionStorage.getItem(KEPT) ?? "");

/** Send this key with all further requests.
 *
 * @param keeps whether to keep the key when this tab is reloaded.
 */
export function useKey(text: string, keeps: boolean): void {
  key.value = text.trim();
  if (keeps && key.value) sessionStorage.setItem(KEPT, key.value);
  else sessionStorage.removeItem(KEPT);
}

let rejected: (message: string) => void = () => undefined;

/** Call `listener` with the server's message whenever it rejects the key. */
export function onRejected(listener: (message: string) => void): void {
  rejected = listener;
}

export class ApiError extends Error {
  readonly status: number;
  readonly param: string | null;
  constructor(status: number, message: string, param: string | null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** Return the headers of a request. The key is a header, because URLs are logged. */
export function headers(more: Record<string, string> = {}): Record<string, string> {
  return key.value ? { authorization: `Bearer ${key.value}`, ...more } : more;
}

/** Send a request and return the response.
 *
 * @throws {ApiError} with the server's message if the response is an error.
 */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const extra = (init.headers ?? {}) as Record<string, string>;
  const answer = await fetch(path, { ...init, headers: headers(extra), cache: "no-store" });
  if (answer.ok) return answer;
  const error = await answer
    .json()
    .then((body: { error?: { message?: string; param?: string | null } }) => body.error)
    .catch(() => undefined);
  const later = answer.headers.get("retry-after");
  const message = (error?.message ?? `The server returned status ${answer.status} without an error message.`) + (later ? ` Retry in ${later} s.` : "");
  if (answer.status === 401) {
    // The message also explains how a program sends a key, which does not help users of this page.
    rejected(message.split(" Send a key as")[0] ?? message);
    throw new ApiError(401, "Enter an API key for this server.", null);
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

/** Return the message of an error, for users. */
export function words(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return "The server cannot be reached. Check that it is running.";
  return error instanceof Error ? error.message : String(error);
}
