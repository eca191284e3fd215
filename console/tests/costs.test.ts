import assert from "node:assert/strict";
import { test } from "node:test";
import { type ApiCostGroup, cachedShare, type CostRow, costRows, dayStart, runningSums, sumCosts } from "../src/data/costs.ts";
import { cacheWords } from "../src/data/format.ts";
import { overTime, seriesOf } from "../src/data/series.ts";

const group = (day: string, worker: string | null, cost_usd: string, more: Partial<ApiCostGroup> = {}): ApiCostGroup => ({ day, worker, runs: 1, input_tokens: 100, cached_tokens: 25, output_tokens: 5, cost_usd, saved_usd: "-0.5", baseline_usd: "3", unknown_costs: 0, ...more });
const report = { from: "2026-11-01", to: "2026-11-03", baseline: "gpt-5", ledger: null, data: [group("2026-11-01", "a", "0.25"), group("2026-11-03", "a", "1.000000000001"), group("2026-11-03", null, "0.1", { input_tokens: 0, cached_tokens: 0, baseline_usd: null, unknown_costs: 2 })] };
const span = { from_s: dayStart(report.from), to_s: dayStart(report.to) + 86_400, step_s: 86_400 };

test("costs of a day and a worker are drawn on that day, in UTC", () => {
  const rows = costRows(report, "worker");
  const cost = { addsUp: true, value: (of: readonly CostRow[]) => sumCosts(of).cost_usd };
  assert.deepEqual(seriesOf(rows, cost, span, 6), [{ name: "a", values: [0.25, 0, 1.000000000001] }, { name: "", values: [0, 0, 0.1] }]);
});

test("sums add amounts, tokens and calls of unknown cost", () => {
  const total = sumCosts(costRows(report, "worker"));
  assert.deepEqual([total.runs, total.saved_usd, total.baseline_usd, total.unknown, cachedShare(total)], [3, -1.5, 6, 2, 0.25]);
  assert.equal(cachedShare(sumCosts([])), null);
});

test("a day without requests has no cached share, and sums so far go on", () => {
  const rows = costRows(report, "worker");
  assert.deepEqual(overTime(rows, { addsUp: false, value: (of) => cachedShare(sumCosts(of)) }, span), [0.25, null, 0.25]);
  assert.deepEqual(runningSums([1, null, 2]), [1, 1, 3]);
});

test("what a cache saved is told in words, and what cost more to write too", () => {
  assert.equal(cacheWords({ cached_share: 0.634, saved_usd: 0.012 }), "63 % cached, saved 1.20 ¢");
  assert.equal(cacheWords({ cached_share: 0, saved_usd: -0.01 }), "0 % cached, cost 1.00 ¢ to write");
  assert.equal(cacheWords({ cached_share: 0.5, saved_usd: null }), "50 % cached");
  assert.deepEqual([cacheWords({ cached_share: 0, saved_usd: 0 }), cacheWords({ cached_share: null, saved_usd: null })], ["", ""]);
});
