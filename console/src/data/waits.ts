/** Positions of times on a timeline. The run's clock stops while the client runs its tools. The timeline shows that
 * time as a separate section. */

/** Period in which a run waited for its client. */
export interface Wait {
  /** Start by the run's clock. */
  at_s: number;
  /** Duration in seconds, or null if the run is still waiting. */
  waited_s: number | null;
  /** Unix time of the start. */
  suspended: number | null;
}

export interface Room {
  /** Length of the whole timeline in seconds. */
  whole: number;
  /** Position of a time of the run's clock, before a wait that starts at this time. */
  before: (s: number) => number;
  /** Position of a time of the run's clock, after a wait that starts at this time. */
  after: (s: number) => number;
  /** Time of the run's clock at a position. */
  timeAt: (place: number) => number;
}

/** Maximum drawn length of a wait, as a share of the run's own time. A wait of an hour would leave no space for steps. */
const MOST = 0.6;

/** Return the timeline of a run up to `now_s`. The waits are in order. */
export function roomOf(now_s: number, waits: readonly Wait[], unix_s: number): Room {
  const own = Math.max(now_s, 0.001);
  const drawn = waits.map((wait) => ({ at_s: wait.at_s, width: Math.min(took(wait, unix_s), MOST * own) }));
  const shift = (is: (at_s: number) => boolean) => drawn.reduce((sum, wait) => (is(wait.at_s) ? sum + wait.width : sum), 0);
  const timeAt = (place: number) => {
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
    after: (s) => s + shift((at_s) => at_s <= s),
    timeAt,
  };
}

/** Return the seconds that a wait took, or has taken so far. */
export function took(wait: Wait, unix_s: number): number {
  return wait.waited_s ?? (wait.suspended === null ? 0 : Math.max(0, unix_s - wait.suspended));
}
