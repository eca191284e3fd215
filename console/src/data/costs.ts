/** Costs by day and group, from `GET /v1/costs`. Amounts become numbers, which is exact enough to show them. */
import type { Timed } from "./series.ts";

export type CostField = "model" | "worker" | "team" | "key";
/** Field of a group, by the name by which it is chosen. */
const COLUMNS = { model: "model", worker: "worker", team: "team_id", key: "key_id" } as const;

/** `GET /v1/costs`. Amounts are decimal strings. */
export interface ApiCosts {
  from: string;
  to: string;
  /** Model that the settings name for comparison. */
  baseline: string | null;
  /** Sum of the ledger, for administrators. */
  ledger: { cost_usd: string; difference_usd: string } | null;
  data: ApiCostGroup[];
}

export interface ApiCostGroup {
  day: string;
  model?: string;
  worker?: string | null;
  team_id?: string | null;
  key_id?: string | null;
  runs: number;
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
  cost_usd: string;
  saved_usd: string;
  baseline_usd: string | null;
  unknown_costs: number;
}

/** Sums of a day and a group, or of several. */
export interface CostSums {
  runs: number;
  input: number;
  cached: number;
  output: number;
  cost_usd: number;
  saved_usd: number;
  baseline_usd: number;
  /** Number of calls of unknown cost, which no amount includes. */
  unknown: number;
}

export type CostRow = Timed & CostSums;

const NOTHING: CostSums = { runs: 0, input: 0, cached: 0, output: 0, cost_usd: 0, saved_usd: 0, baseline_usd: 0, unknown: 0 };
const FIELDS = Object.keys(NOTHING) as (keyof CostSums)[];

/** Return the start of a day, such as 2026-11-01, in seconds since 1970. */
export function dayStart(day: string): number {
  return Date.parse(`${day}T00:00:00Z`) / 1000;
}

/** Return a row for each day and group. `group` is "" for costs without a worker, team or key. */
export function costRows(report: ApiCosts, by: CostField): CostRow[] {
  return report.data.map((each) => ({
    at_s: dayStart(each.day),
    group: each[COLUMNS[by]] ?? "",
    runs: each.runs,
    input: each.input_tokens,
    cached: each.cached_tokens,
    output: each.output_tokens,
    cost_usd: Number(each.cost_usd),
    saved_usd: Number(each.saved_usd),
    baseline_usd: Number(each.baseline_usd ?? 0),
    unknown: each.unknown_costs,
  }));
}

export function sumCosts(rows: readonly CostSums[]): CostSums {
  return Object.fromEntries(FIELDS.map((field) => [field, rows.reduce((total, row) => total + row[field], 0)])) as unknown as CostSums;
}

export function cachedShare(costs: CostSums): number | null {
  return costs.input ? costs.cached / costs.input : null;
}

/** Return the sum of all values up to each one. */
export function runningSums(values: readonly (number | null)[]): number[] {
  let total = 0;
  return values.map((value) => (total += value ?? 0));
}
