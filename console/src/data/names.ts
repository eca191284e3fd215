/** Names of teams and keys. Records have only their ids. Administrators see all names, others only their own. */
import { signal } from "@preact/signals";
import { type ApiKey, type Team, administers, myKey } from "./access";
import { get } from "./api";
import { OTHERS } from "./series";

export const teams = signal<Team[]>([]);
export const keys = signal<ApiKey[]>([]);

/** Load the teams and keys that the caller may see. */
export async function loadNames(): Promise<void> {
  const mine = myKey();
  if (administers()) {
    const [allTeams, allKeys] = await Promise.all([get<{ data: Team[] }>("/v1/admin/teams"), get<{ data: ApiKey[] }>("/v1/admin/keys?limit=1000")]);
    teams.value = allTeams.data;
    keys.value = allKeys.data;
  } else {
    teams.value = mine?.team ? [mine.team] : [];
    keys.value = mine ? [mine] : [];
  }
}

export function teamName(id: string | null | undefined): string {
  return id ? (teams.value.find((each) => each.id === id)?.name ?? id) : "";
}

export function keyName(id: string | null | undefined): string {
  return id ? (keys.value.find((each) => each.id === id)?.name ?? id) : "";
}

/** Return the title of a group of runs or calls. The groups of workers and models have their names. */
export function titleOf(by: string, name: string): string {
  if (by === "all") return "all requests";
  if (name === OTHERS) return OTHERS;
  if (by === "team") return teamName(name) || "no team";
  if (by === "key") return keyName(name) || "no key";
  return name || "not recorded";
}
