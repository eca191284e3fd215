/** Places for the labels of a plot, so that no label covers another one or a point. */

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Labelled {
  x: number;
  y: number;
  /** Width of the label's text. */
  width: number;
}

/** Place of a label. `x` is the left end of its box, `y` its middle. */
export interface LabelPlace {
  x: number;
  y: number;
  /** End of the box at which the text begins. It is the one nearer to the point, because the width is an estimate. */
  anchor: "start" | "middle" | "end";
  /** True if a line should connect the label with its point, because they are far apart. */
  far: boolean;
}

const GAP = 9;
const RADIUS = 6;

/** Return a place for each label, in the order of `points`.
 *
 * @param bounds area of the plot. Labels stay inside.
 * @param obstacles other areas that no label may cover.
 */
export function placeLabels(points: readonly Labelled[], height: number, bounds: Box, obstacles: readonly Box[] = []): LabelPlace[] {
  const boxes: Box[] = [...obstacles, ...points.map((point) => ({ x: point.x - RADIUS, y: point.y - RADIUS, width: 2 * RADIUS, height: 2 * RADIUS }))];
  const places: LabelPlace[] = [];
  // from left to right, so that a label rather gives way to earlier ones on its left
  const order = points.map((_, index) => index).sort((a, b) => points[a]!.x - points[b]!.x || points[a]!.y - points[b]!.y);
  for (const index of order) {
    const point = points[index]!;
    const place = candidates(point, height).find((each) => fits(boxOf(each, point, height), bounds, boxes)) ?? fallback(point, height, bounds, boxes);
    boxes.push(boxOf(place, point, height));
    places[index] = place;
  }
  return places;
}

/** Yield places left and right of the point first, then above and below it, then further away. */
function candidates(point: Labelled, height: number): LabelPlace[] {
  const [right, left, middle] = [point.x + GAP, point.x - GAP - point.width, point.x - point.width / 2];
  const near = [
    { x: right, y: point.y, anchor: "start", far: false },
    { x: left, y: point.y, anchor: "end", far: false },
    { x: middle, y: point.y - GAP - height / 2, anchor: "middle", far: false },
    { x: middle, y: point.y + GAP + height / 2, anchor: "middle", far: false },
  ] as const;
  const far = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((n) => {
    const away = n * height;
    return [
      { x: right, y: point.y - away, anchor: "start", far: true },
      { x: right, y: point.y + away, anchor: "start", far: true },
      { x: left, y: point.y - away, anchor: "end", far: true },
      { x: left, y: point.y + away, anchor: "end", far: true },
    ] as const;
  });
  return [...near, ...far];
}

function boxOf(place: LabelPlace, point: Labelled, height: number): Box {
  return { x: place.x, y: place.y - height / 2, width: point.width, height };
}

function fits(box: Box, bounds: Box, boxes: readonly Box[]): boolean {
  const inside = box.x >= bounds.x && box.y >= bounds.y && box.x + box.width <= bounds.x + bounds.width && box.y + box.height <= bounds.y + bounds.height;
  return inside && !boxes.some((each) => overlap(box, each));
}

export function overlap(one: Box, other: Box): boolean {
  return one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height;
}

/** Return the first free place in the columns of the plot, from top to bottom, or one that covers something. */
function fallback(point: Labelled, height: number, bounds: Box, boxes: readonly Box[]): LabelPlace {
  for (let y = bounds.y + height / 2; y <= bounds.y + bounds.height - height / 2; y += height / 2)
    for (let x = bounds.x; x + point.width <= bounds.x + bounds.width; x += 20)
      if (fits(boxOf({ x, y, anchor: "start", far: true }, point, height), bounds, boxes)) return { x, y, anchor: "start", far: true };
  return { x: Math.min(point.x + GAP, bounds.x + bounds.width - point.width), y: point.y, anchor: "start", far: false };
}
