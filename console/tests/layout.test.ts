import assert from "node:assert/strict";
import { test } from "node:test";
import { places } from "../src/data/layout.ts";

test("a step stands one column after the last of those that it reads", () => {
  assert.deepEqual(places([[], [], [0, 1], [2]]), [
    { column: 0, row: 0 },
    { column: 0, row: 1 },
    { column: 1, row: 0 },
    { column: 2, row: 0 },
  ]);
});

test("no two steps stand in one place, however many there are", () => {
  const reads = Array.from({ length: 100 }, (_, step) => (step ? [Math.floor((step - 1) / 3)] : []));
  const found = places(reads);
  assert.equal(new Set(found.map(({ column, row }) => `${column} ${row}`)).size, 100);
  reads.forEach((access, step) => access.forEach((read) => assert.ok(found[read]!.column < found[step]!.column)));
});

test("a plan without steps has no places", () => assert.deepEqual(places([]), []));
