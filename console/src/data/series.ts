/** Series over time for plots, from rows of any kind. This module draws nothing. */

export interface Timed {
  at_s: number;
  group: string;
}

/** Figure of some rows. */
export interface Figure<T> {
  /** True if the sum of the groups' values is the total, so that they can be stacked. Others are drawn as lines. */
  addsUp: boolean;
  /** Return null if the rows do not have the figure. */
  value: (rows: readonly T[]) => number | null;
}

export interface Series {
  name: string;
  values: (number | null)[];
}

export interface Span {
  from_s: number;
  to_s: number;
  /** Length of one bar. */
  step_s: number;
}

/** Name of the series of all further groups. */
export const OTHERS = "others";

/** Return a span that ends with the bar of now.
 *
 * @param shift_s difference of the local time from UTC, so that days begin at midnight.
 */
export function spanOf(now_s: number, step_s: number, n: number, shift_s = 0): Span {
  const to_s = (Math.floor((now_s + shift_s) / step_s) + 1) * step_s - shift_s;
  return { from_s: to_s - n * step_s, to_s, step_s };
}

/** Return one series for each group, the largest first. Groups beyond `most` become one. */
export function seriesOf<T extends Timed>(rows: readonly T[], figure: Figure<T>, span: Span, most: number): Series[] {
  const groups = byGroup(rows);
  const weight = (name: string) => (figure.addsUp ? (figure.value(groups.get(name)!) ?? 0) : groups.get(name)!.length);
  const names = [...groups.keys()].sort((a, b) => weight(b) - weight(a) || (a < b ? -1 : 1));
  const shown = names.slice(0, names.length > most ? most - 1 : most).map((name) => ({ name, rows: groups.get(name)! }));
  const rest = names.slice(shown.length).flatMap((name) => groups.get(name)!);
  if (rest.length) shown.push({ name: OTHERS, rows: rest });
  return shown.map((each) => ({ name: each.name, values: overTime(each.rows, figure, span) }));
}

export function byGroup<T extends Timed>(rows: readonly T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const row of rows) {
    const group = groups.get(row.group);
    if (group) group.push(row);
    else groups.set(row.group, [row]);
  }
  return groups;
}

/** Return the figure of each bar. */
export function overTime<T extends Timed>(rows: readonly T[], figure: Figure<T>, span: Span): (number | null)[] {
  const n = Math.round((span.to_s - span.from_s) / span.step_s);
  const bars: T[][] = Array.from({ length: n }, () => []);
  for (const row of rows) bars[Math.floor((row.at_s - span.from_s) / span.step_s)]?.push(row);
  return bars.map((bar) => (bar.length || figure.addsUp ? figure.value(bar) : null));
}

/** Return the quantile of sorted values, or null if there are no values. */
export function quantile(sorted: readonly number[], part: number): number | null {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? null;
}

/** Return ticks at round numbers, among them 0, that reach from at most `least` to at least `most`. */
export function ticks(most: number, least = 0, n = 4): number[] {
  if (!(most > least)) return [0, 1];
  const raw = (most - least) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw - 1e-12)!;
  const [first, last] = [Math.floor(least / step + 1e-9), Math.ceil(most / step - 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}
