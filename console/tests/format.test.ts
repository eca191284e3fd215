import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, brief, compact, dollars, largest, percent, plural, seconds, sum } from "../src/data/format.ts";

test("money: unknown is not nothing, and small amounts are cents", () => {
  assert.deepEqual(
    [null, undefined, 0, 0.0000036, 0.0123, 1.5].map((amount) => dollars(amount)),
    ["unknown", "unknown", "free", "0.00036 ¢", "1.23 ¢", "$1.50"],
  );
});

test("times are told as people read them", () => {
  assert.deepEqual([null, 0, 0.0049, 1, 12.345, 125].map(seconds), ["", "0 ms", "5 ms", "1.00 s", "12.3 s", "2 min 5 s"]);
});

test("a brief text is one line", () => {
  assert.equal(brief(" a\n b ", 10), "a b");
  assert.equal(brief("abcdef", 4), "abc…");
});

test("a sum of nothing is not free, and large numbers are short", () => {
  assert.deepEqual([0, 0.0123, 2, -2, -0.01].map((amount) => sum(amount)), ["$0", "1.23 ¢", "$2.00", "−$2.00", "−1.00 ¢"]);
  assert.deepEqual([7, 999, 12_345, 2_000_000].map(compact), ["7", "999", "12.3K", "2M"]);
  assert.deepEqual([null, 0, 0.004, 0.31, 1].map(percent), ["–", "0 %", "0.4 %", "31 %", "100 %"]);
  assert.deepEqual([plural(1, "step"), plural(2, "step")], ["1 step", "2 steps"]);
});

test("amounts that are shown together have the unit of the largest", () => {
  const together = (amounts: number[]) => amounts.map((amount) => sum(amount, largest(amounts)));
  assert.deepEqual(together([-2, -0.5, 0, 0.5, 0.004, -0.004]), ["−$2.00", "−$0.50", "$0", "$0.50", "<$0.01", ">−$0.01"]);
  assert.deepEqual(together([0.5, 0, 0.00001]), ["50.00 ¢", "0 ¢", "0.0010 ¢"]);
  assert.deepEqual(together([0, 0]), ["$0", "$0"]);
  assert.deepEqual([null, 0, 0.25].map((amount) => dollars(amount, largest([null, 12]))), ["unknown", "free", "$0.25"]);
});

test("how long ago a time was", () => {
  assert.deepEqual([1000, 970, 700, -6200].map((at) => ago(at, 1000)), ["just now", "30 s ago", "5 min ago", "2 h ago"]);
});
