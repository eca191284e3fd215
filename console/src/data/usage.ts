/** Figures of runs over time, by worker, team, model or key. This module reads records and draws nothing. */
import type { ApiRun, ApiStep, Attempt } from "./record";
import { type Figure, quantile, type Timed } from "./series.ts";

/** A run, or a call of a worker, with its figures. */
export interface Row extends Timed {
  /** True if the run has ended. Only such runs count for the share of errors. */
  ended: boolean;
  failed: boolean;
  /** Null if the cost is unknown. */
  cost_usd: number | null;
  tokens: number;
  input: number;
  cached: number;
  took_s: number | null;
}

/** Facts of a run that the page stores. */
export interface Fact {
  id: string;
  run: Row;
  team: string;
  model: string;
  key: string;
  calls: Row[];
}

export type By = "all" | "worker" | "team" | "model" | "key";

export interface Totals {
  n: number;
  ended: number;
  failed: number;
  cost_usd: number;
  /** Number of rows whose cost is unknown. The sum does not include them. */
  n_unpriced: number;
  tokens: number;
  input: number;
  cached: number;
  p50_s: number | null;
  p95_s: number | null;
}

const FAILED = new Set(["failed", "lost", "expired"]);
const ENDED = new Set(["finished", "failed", "cancelled", "lost", "expired"]);

export function factOf(run: ApiRun): Fact {
  const calls = callsOf(run);
  const row: Row = {
    at_s: run.created,
    group: "",
    ended: ENDED.has(run.status) && run.status !== "cancelled",
    failed: FAILED.has(run.status),
    cost_usd: run.cost_usd,
    tokens: run.usage.total_tokens,
    input: add(calls, "input"),
    cached: add(calls, "cached"),
    took_s: run.status === "finished" ? run.wall_s : null,
  };
  return { id: run.id, run: row, team: run.account?.team_id ?? "", model: run.model, key: run.account?.key_id ?? "", calls };
}

/** Return the calls of a run's plans and steps. The calls of a nested run stand for the step that started it. */
function callsOf(run: ApiRun): Row[] {
  const plans = run.plans.flatMap((plan) => {
    if (!plan.worker) return [];
    const failed = plan.error !== null;
    const took_s = failed ? null : between(plan.started_s, plan.ended_s);
    return [callOf(run.created, plan.worker, plan, { took_s, failed }), ...failures(run.created, plan.attempts)];
  });
  return [...plans, ...run.steps.flatMap((step) => callsOfStep(run.created, step))];
}

/** States of a step whose newest call has ended, if it was started. The newest call of a waiting step is its last turn. */
const CALLED = new Set(["done", "failed", "cancelled", "not_needed"]);

function callsOfStep(at_s: number, step: ApiStep): Row[] {
  if (step.inner) return callsOf({ ...step.inner, created: at_s });
  if (step.reused_from !== null) return [];
  const rows: Row[] = [];
  let began_s = step.started_s;
  for (const turn of step.turns ?? []) {
    rows.push(callOf(at_s, turn.worker ?? step.worker, turn, { took_s: between(began_s, turn.called_s) }), ...failures(at_s, turn.attempts ?? []));
    began_s = turn.answered_s;
  }
  if (step.started_s !== null && CALLED.has(step.status)) {
    const took_s = step.status === "done" ? between(began_s, step.ended_s) : null;
    const ended = step.status === "done" || step.status === "failed";
    rows.push(callOf(at_s, step.served_by ?? step.worker, step, { took_s, ended, failed: step.status === "failed" }));
  }
  return [...rows, ...failures(at_s, step.attempts)];
}

function between(from_s: number | null, to_s: number | null): number | null {
  return from_s === null || to_s === null ? null : to_s - from_s;
}

interface Outcome {
  took_s?: number | null;
  ended?: boolean;
  failed?: boolean;
}

function callOf(at_s: number, group: string, paid: { usage?: ApiStep["usage"]; cost_usd?: number | null }, outcome: Outcome): Row {
  const { took_s = null, ended = true, failed = false } = outcome;
  const usage = paid.usage ?? null;
  const input = usage?.input_tokens ?? 0;
  const cost_usd = paid.cost_usd ?? (failed ? 0 : null);
  return { at_s, group, ended, failed, cost_usd, tokens: input + (usage?.output_tokens ?? 0), input, cached: usage?.cached_input_tokens ?? 0, took_s };
}

/** Return the calls that gave no answer and were followed by another one. A hedge that lost the race has not failed. */
function failures(at_s: number, attempts: readonly Attempt[]): Row[] {
  const sent = attempts.filter((each) => each.outcome !== "left_alone");
  return sent.map((each) => {
    const failed = each.outcome !== "lost_race";
    return callOf(at_s, each.worker, { cost_usd: each.cost_usd ?? 0 }, { ended: failed, failed });
  });
}

/** Return the rows to count. By worker these are calls, otherwise runs. */
export function rowsOf(facts: readonly Fact[], by: By): Row[] {
  if (by === "worker") return facts.flatMap((fact) => fact.calls);
  if (by === "all") return facts.map((fact) => fact.run);
  return facts.map((fact) => ({ ...fact.run, group: fact[by] }));
}

export function totalsOf(rows: readonly Row[]): Totals {
  const took = rows.flatMap((row) => (row.took_s === null ? [] : [row.took_s])).sort((a, b) => a - b);
  return {
    n: rows.length,
    ended: rows.filter((row) => row.ended).length,
    failed: rows.filter((row) => row.failed).length,
    cost_usd: rows.reduce((total, row) => total + (row.cost_usd ?? 0), 0),
    n_unpriced: rows.filter((row) => row.cost_usd === null).length,
    tokens: add(rows, "tokens"),
    input: add(rows, "input"),
    cached: add(rows, "cached"),
    p50_s: quantile(took, 0.5),
    p95_s: quantile(took, 0.95),
  };
}

export type Metric = "requests" | "cost" | "tokens" | "latency" | "errors" | "cached";

/** Return a figure of some rows, or null if they do not have it. */
export function valueOf(metric: Metric, totals: Totals): number | null {
  switch (metric) {
    case "requests":
      return totals.n;
    case "cost":
      return totals.cost_usd;
    case "tokens":
      return totals.tokens;
    case "latency":
      return totals.p50_s;
    case "errors":
      return totals.ended ? totals.failed / totals.ended : null;
    case "cached":
      return totals.input ? totals.cached / totals.input : null;
  }
}

/** Return whether the sum of the groups' values is the total, so that the chart can stack them. */
export function addsUp(metric: Metric): boolean {
  return metric === "requests" || metric === "cost" || metric === "tokens";
}

export function figureOf(metric: Metric): Figure<Row> {
  return { addsUp: addsUp(metric), value: (rows) => valueOf(metric, totalsOf(rows)) };
}

function add(rows: readonly Row[], field: "tokens" | "input" | "cached"): number {
  return rows.reduce((total, row) => total + row[field], 0);
}
