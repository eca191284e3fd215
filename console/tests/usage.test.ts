import assert from "node:assert/strict";
import { test } from "node:test";
import { seriesOf, spanOf, ticks } from "../src/data/series.ts";
import { factOf, figureOf, rowsOf, totalsOf, valueOf } from "../src/data/usage.ts";

const usage = (input_tokens: number, output_tokens: number, cached_input_tokens = 0) => ({ input_tokens, output_tokens, cached_input_tokens, reasoning_tokens: 0 });
const step = (worker: string, more: object = {}) => ({ worker, served_by: worker, status: "done", started_s: 1, ended_s: 3, usage: usage(10, 5, 4), cost_usd: 0.5, attempts: [], reused_from: null, inner: null, ...more });
const run = (more: object = {}) =>
  factOf({ id: "wf", model: "mini", status: "finished", created: 100, cost_usd: 1, wall_s: 2, usage: { total_tokens: 30 }, account: { key_id: "key_1", team_id: "team_1" }, plans: [], steps: [step("a"), step("b")], ...more } as never);

test("a run counts once, and each of its calls for its worker", () => {
  const fact = run();
  const all = totalsOf(rowsOf([fact], "all"));
  assert.deepEqual([all.n, all.failed, all.cost_usd, all.tokens, all.input, all.cached, all.p50_s], [1, 0, 1, 30, 20, 8, 2]);
  assert.deepEqual(rowsOf([fact], "worker").map((row) => [row.group, row.tokens, row.cost_usd, row.took_s]), [["a", 15, 0.5, 2], ["b", 15, 0.5, 2]]);
  assert.deepEqual((["team", "model", "key"] as const).map((by) => rowsOf([fact], by)[0]!.group), ["team_1", "mini", "key_1"]);
});

test("the calls of a nested run stand for its step, and a reused step is no call", () => {
  const inner = { ...({ plans: [], steps: [step("deep")] } as object) };
  const fact = run({ steps: [step("team", { inner }), step("old", { reused_from: 0 })] });
  assert.deepEqual(fact.calls.map((call) => call.group), ["deep"]);
});

test("failed attempts count for the worker that failed, a lost race only with its cost, and a skipped worker not at all", () => {
  const attempts = [
    { worker: "bad", outcome: "failed", cost_usd: 0.25 },
    { worker: "slow", outcome: "lost_race", cost_usd: 0.125 },
    { worker: "away", outcome: "left_alone", cost_usd: null },
  ];
  const totals = totalsOf(run({ steps: [step("a", { served_by: "b", attempts })] }).calls);
  assert.deepEqual([totals.n, totals.failed, totals.cost_usd, valueOf("errors", totals)], [3, 1, 0.875, 0.5]);
});

test("each turn of a step is a call, without the time that the client's tools took", () => {
  const attempts = [{ worker: "bad", outcome: "failed", cost_usd: 0.25 }];
  const turn = { output: "", tool_calls: [], worker: "c", usage: usage(100, 1), cost_usd: 2, attempts, called_s: 2, answered_s: 10 };
  const calls = (more: object) => run({ steps: [step("a", { turns: [turn], started_s: 1, ended_s: 11, ...more })] }).calls;
  const done = calls({});
  assert.deepEqual(done.map((row) => [row.group, row.tokens, row.cost_usd, row.took_s, row.failed]), [["c", 101, 2, 1, false], ["bad", 0, 0.25, null, true], ["a", 15, 0.5, 1, false]]);
  const waiting = calls({ status: "waiting", usage: null, cost_usd: null });
  assert.deepEqual(waiting.map((row) => row.group), ["c", "bad"]);
});

test("a cancelled call has its cost and is no error", () => {
  const totals = totalsOf(run({ steps: [step("a", { status: "cancelled" }), step("b", { status: "cancelled", started_s: null })] }).calls);
  assert.deepEqual([totals.n, totals.ended, totals.failed, totals.cost_usd, totals.tokens], [1, 0, 0, 0.5, 15]);
});

test("runs that are under way or cancelled are no errors, and an unknown cost is no zero", () => {
  const rows = rowsOf([run({ status: "running", cost_usd: null }), run({ status: "failed" }), run({ status: "cancelled" })], "all");
  const totals = totalsOf(rows);
  assert.deepEqual([totals.n, totals.ended, totals.failed, totals.n_unpriced, totals.p50_s], [3, 1, 1, 1, null]);
});

test("series have a value for each bar, the largest group first, and the rest together", () => {
  const span = spanOf(119, 10, 3);
  assert.deepEqual(span, { from_s: 90, to_s: 120, step_s: 10 });
  const facts = [run({ model: "x" }), run({ model: "y" }), run({ model: "y", created: 111 }), run({ model: "z", created: 5 })];
  const series = seriesOf(rowsOf(facts, "model"), figureOf("requests"), span, 2);
  assert.deepEqual(series, [{ name: "y", values: [0, 1, 1] }, { name: "others", values: [0, 1, 0] }]);
  assert.deepEqual(seriesOf(rowsOf(facts, "all"), figureOf("latency"), span, 1)[0]!.values, [null, 2, 2]);
});

test("days begin at midnight of the local time", () => {
  const { to_s } = spanOf(1_700_000_000, 86_400, 2, 3600);
  assert.equal((to_s + 3600) % 86_400, 0);
});

test("ticks are round numbers that reach the largest value", () => {
  assert.deepEqual(ticks(0), [0, 1]);
  assert.deepEqual(ticks(7), [0, 2, 4, 6, 8]);
  assert.deepEqual(ticks(0.031), [0, 0.01, 0.02, 0.03, 0.04]);
  assert.equal(ticks(1000).at(-1), 1000);
  assert.deepEqual(ticks(3, -1), [-1, 0, 1, 2, 3]);
  assert.deepEqual(ticks(0, -0.7), [-0.8, -0.6, -0.4, -0.2, 0]);
});
