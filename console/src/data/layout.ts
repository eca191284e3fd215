/** Layout of a plan's graph. A step is one column to the right of the last step that it reads. */

export interface Place {
  column: number;
  row: number;
}

/** Return the place of each step by its index.
 *
 * @param reads for each step, the earlier steps that it reads.
 */
export function places(reads: readonly (readonly number[])[]): Place[] {
  const columns: number[] = [];
  for (const access of reads) columns.push(Math.max(-1, ...access.map((read) => columns[read] ?? 0)) + 1);
  const placed: Place[] = [];
  const width = Math.max(-1, ...columns) + 1;
  for (let column = 0; column < width; column++) {
    const here = columns.flatMap((each, step) => (each === column ? [step] : []));
    // Order steps by the steps that they read, so that few edges cross.
    const height = (step: number): number => {
      const rows = (reads[step] ?? []).map((read) => placed[read]?.row ?? 0);
      return rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : step;
    };
    here.sort((a, b) => height(a) - height(b) || a - b).forEach((step, row) => (placed[step] = { column, row }));
  }
  return placed;
}
