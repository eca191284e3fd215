import assert from "node:assert/strict";
import { test } from "node:test";
import { type Box, overlap, placeLabels } from "../src/data/labels.ts";

const BOUNDS: Box = { x: 40, y: 0, width: 600, height: 300 };
const HEIGHT = 16;

function boxes(points: { x: number; y: number; width: number }[]): Box[] {
  return placeLabels(points, HEIGHT, BOUNDS).map((place, index) => ({ x: place.x, y: place.y - HEIGHT / 2, width: points[index]!.width, height: HEIGHT }));
}

function check(points: { x: number; y: number; width: number }[]): void {
  const all = boxes(points);
  for (const [index, box] of all.entries()) {
    assert.ok(box.x >= BOUNDS.x && box.x + box.width <= BOUNDS.x + BOUNDS.width, "inside");
    assert.ok(box.y >= BOUNDS.y && box.y + box.height <= BOUNDS.y + BOUNDS.height, "inside");
    for (const other of all.slice(index + 1)) assert.ok(!overlap(box, other), JSON.stringify([box, other]));
  }
}

test("a label alone is beside its point, and at the right edge on its left", () => {
  const [free, edge] = placeLabels([{ x: 100, y: 50, width: 60 }, { x: 630, y: 200, width: 60 }], HEIGHT, BOUNDS);
  assert.deepEqual([free!.x > 100, free!.y, free!.far], [true, 50, false]);
  assert.ok(edge!.x + 60 < 630);
});

test("labels of points at the same place do not cover each other", () => {
  check(Array.from({ length: 6 }, () => ({ x: 300, y: 150, width: 90 })));
});

test("labels of many points in a corner stay inside", () => {
  check(Array.from({ length: 12 }, (_, index) => ({ x: 600 + (index % 3) * 8, y: 10 + index * 4, width: 120 })));
});

test("labels keep away from other things in the plot", () => {
  const wall: Box = { x: 105, y: 0, width: 100, height: 300 };
  const [place] = placeLabels([{ x: 100, y: 50, width: 50 }], HEIGHT, BOUNDS, [wall]);
  assert.ok(place!.x + 50 < 100);
});
