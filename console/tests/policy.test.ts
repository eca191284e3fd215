import assert from "node:assert/strict";
import { test } from "node:test";
import { changes, namesOf, restrictions, textOf } from "../src/data/policy.ts";

test("only what a policy restricts is told", () => {
  const policy = { models: null, exclude_workers: [], local_only: false, store_content: true, requests_per_minute: 6000, max_cost_usd: "0.05", tools: [], train_on_content: false };
  assert.deepEqual(restrictions(policy), ["6,000 requests/min", "$0.05 per request", "tools of the client: none", "not: allow training on the runs"]);
  assert.deepEqual(restrictions({}), []);
});

test("only what has changed is sent", () => {
  const before = { models: ["b", "a"], max_cost_usd: "0.050", max_steps: 3, local_only: false };
  assert.deepEqual(changes(before, { ...before, models: ["a", "b"], max_cost_usd: "0.05" }), {});
  assert.deepEqual(changes(before, { ...before, max_steps: null, local_only: true }), { max_steps: null, local_only: true });
});

test("names are read as the command line reads them", () => {
  assert.deepEqual([namesOf(" "), namesOf("none"), namesOf("a, b,")], [null, [], ["a", "b"]]);
  assert.deepEqual([textOf(null), textOf([]), textOf(["a", "b"])], ["", "none", "a, b"]);
});
