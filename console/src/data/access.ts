/** API key of the page's user, and what it may do. Pages offer only what the key allows. */
import { signal } from "@preact/signals";
import { ApiError, get, headers, key, onRejected, words } from "./api";
import { loadModels } from "./models";

export type Scope = "run" | "read" | "admin";

export interface Team {
  id: string;
  name: string;
  enabled: boolean;
  created_at: string;
}

/** API key without its secret, as in `GET /v1/budget` and `GET /v1/admin/keys`. */
export interface ApiKey {
  id: string;
  name: string;
  hint: string;
  scopes: Scope[];
  team: Team | null;
  state: "active" | "revoked" | "expired" | "team off";
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
}

/** Budget of a day or a month. Amounts are decimal strings. */
export interface Window {
  limit_usd: string | null;
  spent_usd: string;
  held_usd: string;
  left_usd: string | null;
  resets_at: string;
}

export interface Budget {
  id: string;
  day: Window;
  month: Window;
}

/** `GET /v1/budget`. */
export interface Own {
  api_key: ApiKey | null;
  key: Budget | null;
  team: Budget | null;
}

export type Access =
  | { state: "loading" }
  /** The server needs a key. `message` says why it rejected the entered one, or is "". */
  | { state: "locked"; message: string }
  | { state: "away"; message: string }
  | { state: "open"; own: Own };

export const access = signal<Access>({ state: "loading" });
/** Number of times that the page was opened with another key. Pages load their data again after each change. */
export const keyChanges = signal(0);

onRejected((message) => (access.value = { state: "locked", message }));

/** Ask the server who the caller is. */
export async function identify(): Promise<void> {
  try {
    const ready = (await (await fetch("/readyz", { headers: headers(), cache: "no-store" })).json()) as { running?: number };
    // Without an accepted key, this response has only the status. So a new visitor causes no failed request.
    if (ready.running === undefined && !key.value) access.value = { state: "locked", message: "" };
    else {
      const [own] = await Promise.all([get<Own>("/v1/budget"), loadModels()]); // the models' order gives workers their colours
      access.value = { state: "open", own };
    }
    keyChanges.value += 1;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return; // `onRejected` has set the state
    access.value = { state: "away", message: words(error) };
  }
}

function own(): Own | null {
  return access.value.state === "open" ? access.value.own : null;
}

/** The caller's key, or null if the server needs none. */
export function myKey(): ApiKey | null {
  return own()?.api_key ?? null;
}

export function may(scope: Scope): boolean {
  const mine = own();
  return mine !== null && (mine.api_key === null || mine.api_key.scopes.includes(scope) || mine.api_key.scopes.includes("admin"));
}

/** Return whether the caller may manage teams and keys. A server without keys has no administrator yet. */
export function administers(): boolean {
  return myKey() !== null && may("admin");
}

/** Return whether the caller owns the runs of an account, and may rate them. */
export function owns(account: { key_id: string; team_id: string | null } | null | undefined): boolean {
  const mine = myKey();
  if (!mine) return !account;
  if (!account) return false;
  return mine.team ? account.team_id === mine.team.id : !account.team_id && account.key_id === mine.id;
}

const NEEDS: Record<Scope, string> = {
  run: "may not send requests",
  read: "may not read runs",
  admin: "is not an administrator's key",
};

/** Say why the caller's key does not allow something. */
export function whyNot(scope: Scope): string {
  const mine = myKey();
  if (!mine) return "This server has no API keys yet.";
  return `Your key “${mine.name}” ${NEEDS[scope]}: it lacks the scope ${scope}.`;
}
