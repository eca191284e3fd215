import assert from "node:assert/strict";
import { test } from "node:test";
import { roomOf, took } from "../src/data/waits.ts";

const WAITS = [
  { at_s: 2, waited_s: 1, suspended: 100 },
  { at_s: 3, waited_s: 3600, suspended: 200 },
];

test("a wait takes space on the timeline, and the same time of the run has a position before and after it", () => {
  const room = roomOf(5, WAITS, 0);
  assert.equal(room.whole, 5 + 1 + 3);
  assert.deepEqual([room.before(2), room.after(2), room.before(2.5)], [2, 3, 3.5]);
  assert.deepEqual([room.before(3), room.after(3), room.before(5)], [4, 7, 9]);
});

test("a place says the time of the run; in a wait that stands still", () => {
  const room = roomOf(5, WAITS, 0);
  assert.deepEqual([1, 2, 2.5, 3, 4, 5, 7, 9].map(room.timeAt), [1, 2, 2, 2, 3, 3, 3, 5]);
});

test("a wait that has not ended takes as long as it does by now, never less than nothing", () => {
  const wait = { at_s: 1, waited_s: null, suspended: 100 };
  assert.equal(took(wait, 130), 30);
  assert.equal(took(wait, 90), 0);
  assert.equal(took({ ...wait, suspended: null }, 130), 0);
});
