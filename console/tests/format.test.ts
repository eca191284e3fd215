import assert from "node:assert/strict";
import { test } from "node:test";
import { brief, dollars, seconds } from "../src/format.ts";

test("money: unknown is not nothing, and small amounts are cents", () => {
  assert.deepEqual(
    [null, undefined, 0, 0.0000036, 0.0123, 1.5].map(dollars),
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
