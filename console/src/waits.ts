/** Where a time of a run stands in a picture. The run's own clock stands still while its client works on calls of
 * tools; the picture gives that time a room of its own. */

/** A time that a run waited for its client. */
export interface Wait {
  /** When it began, by the run's clock. */
  at_s: number;
  /** How long it took; null: it waits still. */
  waited_s: number | null;
  /** Unix time of its beginning. */
  suspended: number | null;
}

export interface Room {
  /** How wide the whole picture is, in seconds. */
  whole: number;
  /** Where a time of the run's clock stands, before a wait that began right then. */
  before: (s: number) => number;
  /** The same, after it. */
  behind: (s: number) => number;
  /** The time of the run's clock at a place. */
  told: (place: number) => number;
}

/** The longest that a wait is drawn, in lengths of all that the run did itself: an hour would leave no room for it. */
const MOST = 0.6;

/** The room of a run that has come to `now_s`, with its waits in order. */
export function roomOf(now_s: number, waits: readonly Wait[], unix_s: number): Room {
  const own = Math.max(now_s, 0.001);
  const drawn = waits.map((wait) => ({ at_s: wait.at_s, width: Math.min(took(wait, unix_s), MOST * own) }));
  const shift = (is: (at_s: number) => boolean) => drawn.reduce((sum, wait) => (is(wait.at_s) ? sum + wait.width : sum), 0);
  const told = (place: number) => {
    let left = place;
    for (const wait of drawn) {
      if (left <= wait.at_s) break;
      left = Math.max(wait.at_s, left - wait.width);
    }
    return left;
  };
  return {
    whole: own + shift(() => true),
    before: (s) => s + shift((at_s) => at_s < s),
    behind: (s) => s + shift((at_s) => at_s <= s),
    told,
  };
}

/** How long a wait took, or takes by now. */
export function took(wait: Wait, unix_s: number): number {
  return wait.waited_s ?? (wait.suspended === null ? 0 : Math.max(0, unix_s - wait.suspended));
}
