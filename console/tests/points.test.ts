import assert from "node:assert/strict";
import { test } from "node:test";
import { live, pointsOf, scale } from "../src/data/points.ts";

const run = (model: string, cost_usd: number | null, wall_s: number, score: number | null = null) =>
  ({ model, cost_usd, wall_s, status: "finished", feedback: score === null ? [] : [{ score }] }) as never;

test("live traffic is a point a model, and an unknown cost is no zero", () => {
  const [a, b] = live([run("b", null, 1), run("a", 2, 1), run("a", 4, 3), run("a", null, 2)], [run("a", 2, 1, 1), run("a", 2, 1, 0)]);
  assert.deepEqual([a!.name, a!.n, a!.cost_usd, a!.right, a!.nRated, a!.p50_s], ["a", 3, 3, 0.5, 2, 2]);
  assert.deepEqual([b!.cost_usd, b!.right], [null, null]);
});

test("what is no report is refused, and what a report does not know is not known", () => {
  for (const wrong of [null, 3, {}, { rows: [] }, { rows: [{}] }]) assert.throws(() => pointsOf(wrong));
  const [row] = pointsOf({ rows: [{ strategy: "one", answered: 7, accuracy: { mean: 0.5, low: 0.3, high: 0.7 }, cost_usd: null, wall_s: { p50: 1 } }] });
  assert.deepEqual([row!.right, row!.high, row!.cost_usd, row!.p50_s, row!.p95_s], [0.5, 0.7, null, 1, null]);
});

test("costs that differ much stand by their logarithm", () => {
  assert.equal(scale([1, 100])(10), 0.5);
  assert.equal(scale([0, 100])(50), 0.5);
  assert.equal(scale([0])(0), 0);
});
