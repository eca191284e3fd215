import assert from "node:assert/strict";
import { test } from "node:test";
import type { ApiRun } from "../src/data/record.ts";
import { statusWord } from "../src/data/status.ts";
import { type Run, type RunEvent, after, at, begun, criticalPath } from "../src/data/run.ts";

const HEAD = {
  id: "wf_1",
  model: "mini",
  status: "running",
  created: 0,
  content: true,
  messages: [
    { role: "user", content: "old" },
    { role: "assistant", content: "…" },
    { role: "user", content: "new" },
  ],
} as unknown as ApiRun;
const EVENTS: RunEvent[] = [
  { type: "plan_began", plan: 0, at_s: 0, round: 1, source: "conductor", worker: "lead" },
  { type: "step_planned", plan: 0, step: 0, at_s: 0.1, worker: "a", subtask: "x", access: [] },
  { type: "step_planned", plan: 0, step: 1, at_s: 0.1, worker: "b", subtask: "y", access: [] },
  { type: "step_planned", plan: 0, step: 2, at_s: 0.2, worker: "c", subtask: "z", access: [0, 1] },
  { type: "step_began", plan: 0, step: 0, at_s: 0.1 },
  { type: "step_began", plan: 0, step: 1, at_s: 0.1 },
  { type: "plan_ended", plan: 0, at_s: 0.2, accepted: false, rejected: null, why: "", output: "the plan", cost_usd: 0.5 },
  { type: "step_spoke", plan: 0, step: 0, at_s: 0.4, served_by: "a2" },
  { type: "step_ended", plan: 0, step: 0, at_s: 0.5, cost_usd: 0.1, output: "A", attempts: [{ worker: "a", message: "away" }] },
  { type: "step_ended", plan: 0, step: 1, at_s: 0.9, cost_usd: null, output: "B" },
  { type: "step_began", plan: 0, step: 2, at_s: 0.9 },
  { type: "step_spoke", plan: 0, step: 2, at_s: 1.0, served_by: "c" },
  { type: "answer", text: "one ", at_s: 1.0 },
  { type: "answer", text: "two", at_s: 1.1 },
  { type: "step_ended", plan: 0, step: 2, at_s: 1.2, cost_usd: 0.2, output: "one two" },
  { type: "finished", at_s: 1.2, finish_reason: "stop" },
];
const runAfter = (events: RunEvent[]): Run => events.reduce(after, begun(HEAD));

test("events make the run: who waits, works and has spoken, and what is said", () => {
  const half = runAfter(EVENTS.slice(0, 8));
  assert.deepEqual(half.plans[0]!.steps.map((step) => step.status), ["running", "running", "planned"]);
  assert.equal(half.plans[0]!.steps[0]!.served_by, "a2");
  assert.equal(half.plans[0]!.words.value, "the plan");
  const whole = runAfter(EVENTS);
  assert.equal(whole.status, "finished");
  assert.equal(whole.question, "new");
  assert.equal(whole.answer.value, "one two");
  assert.deepEqual(whole.plans[0]!.steps.map((step) => step.words.value), ["A", "B", "one two"]);
  assert.equal(whole.plans[0]!.steps[0]!.attempts[0]!.message, "away");
  assert.equal(whole.now_s, 1.2);
});

test("an answer that was cut off does not look finished, live and from its record", () => {
  const cut = runAfter([...EVENTS.slice(0, -1), { type: "finished", at_s: 1.2, finish_reason: "length" }]);
  assert.equal(statusWord(cut.status, cut.finish_reason), "finished, cut off");
  assert.equal(statusWord(runAfter(EVENTS).status, runAfter(EVENTS).finish_reason), "finished");
  assert.equal(statusWord("done", "content_filter"), "done, cut off by a content filter");
  assert.equal(statusWord("failed", "length"), "failed");
});

test("an answer that another server writes anew replaces what was shown", () => {
  const run = runAfter([...EVENTS.slice(0, 13), { type: "resumed", at_s: 2 }, { type: "answer_restarted", text: "Another", at_s: 3 }]);
  assert.equal(run.answer.value, "Another");
});

test("a lost step says why", () => {
  const run = runAfter([...EVENTS.slice(0, 6), { type: "step_lost", plan: 0, step: 1, at_s: 0.3, why: "failed", error: { message: "away" } }]);
  assert.equal(run.plans[0]!.steps[1]!.status, "failed");
  assert.equal(run.plans[0]!.steps[1]!.error!.message, "away");
});

test("a replay shows a moment: what had begun, what was said by then, no cost of what had not ended", () => {
  const whole = runAfter(EVENTS);
  const moment = at(whole, 0.45);
  assert.deepEqual(moment.plans[0]!.steps.map((step) => step.status), ["running", "running", "planned"]);
  assert.equal(moment.plans[0]!.steps[0]!.cost_usd, null);
  assert.equal(moment.answer.value, "");
  assert.equal(moment.status, "running");
  assert.equal(at(whole, 0.05).plans[0]!.steps.length, 0);
  assert.equal(at(whole, 9).answer.value, "one two");
  assert.equal(whole.plans[0]!.steps[0]!.words.value, "A", "the run itself stays as it is");
});

test("the critical path goes through the step that was waited for longest", () => {
  assert.deepEqual([...criticalPath(runAfter(EVENTS).plans[0]!)].sort(), [1, 2]);
});
