/** Points of the plot, from a report or from live traffic: accuracy and cost. This module draws nothing. */
import type { ApiRun } from "./record";
import { quantile } from "./series.ts";

export interface Point {
  where: "report" | "live";
  name: string;
  n: number;
  /** Accuracy in a report, or mean rating of live traffic, from 0 to 1. Null if unknown. */
  right: number | null;
  low: number | null;
  high: number | null;
  nRated: number;
  /** Mean cost of a run in dollars, or null if unknown. */
  cost_usd: number | null;
  p50_s: number | null;
  p95_s: number | null;
}

type Json = Record<string, unknown>;

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function objectOf(value: unknown): Json {
  return typeof value === "object" && value !== null ? (value as Json) : {};
}

/** Return the rows of a `report.json`. Throw an error if the object, which is untrusted, has another form. */
export function pointsOf(report: unknown): Point[] {
  const rows = objectOf(report).rows;
  if (!Array.isArray(rows) || !rows.length) throw new Error("There are no rows.");
  return rows.map((row: unknown) => {
    const facts = objectOf(row);
    const accuracy = objectOf(facts.accuracy);
    const wall = objectOf(facts.wall_s);
    if (typeof facts.strategy !== "string") throw new Error("A row has no strategy.");
    return {
      where: "report",
      name: facts.strategy,
      n: numberOf(facts.answered) ?? 0,
      right: numberOf(accuracy.mean),
      low: numberOf(accuracy.low),
      high: numberOf(accuracy.high),
      nRated: 0,
      cost_usd: numberOf(facts.cost_usd),
      p50_s: numberOf(wall.p50),
      p95_s: numberOf(wall.p95),
    };
  });
}

/** Return a point for each requested model. Runs of unknown cost do not count for the mean cost. */
export function live(newest: readonly ApiRun[], rated: readonly ApiRun[]): Point[] {
  const over = newest.filter((run) => run.status === "finished" || run.status === "failed");
  const models = [...new Set(over.map((run) => run.model))].sort();
  return models.map((name) => {
    const runs = over.filter((run) => run.model === name);
    const costs = numbersIn(runs.map((run) => run.cost_usd));
    const walls = numbersIn(runs.map((run) => run.wall_s)).sort((a, b) => a - b);
    const scores = numbersIn(rated.filter((run) => run.model === name).flatMap((run) => (run.feedback ?? []).map((feedback) => feedback.score)));
    return {
      where: "live",
      name,
      n: runs.length,
      right: mean(scores),
      low: null,
      high: null,
      nRated: scores.length,
      cost_usd: mean(costs),
      p50_s: quantile(walls, 0.5),
      p95_s: quantile(walls, 0.95),
    };
  });
}

/** Return a function that maps amounts to 0 to 1. It is logarithmic if the amounts differ widely and none is 0. */
export function scale(amounts: readonly number[]): (amount: number) => number {
  const [least, most] = [Math.min(...amounts), Math.max(...amounts)];
  if (least > 0 && most > 20 * least) return (amount) => Math.log(amount / least) / Math.log(most / least);
  return (amount) => (most > 0 ? amount / most : 0);
}

function numbersIn(values: readonly (number | null | undefined)[]): number[] {
  return values.filter((each): each is number => each !== null && each !== undefined);
}

function mean(values: readonly number[]): number | null {
  return values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null;
}
