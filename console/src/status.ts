/** How a step's status and its worker look and read. */

const WORDS: Record<string, string> = {
  planned: "waits",
  running: "works",
  waiting: "waits for a tool",
  done: "done",
  failed: "failed",
  not_needed: "not needed",
  cancelled: "stopped",
  finished: "finished",
  suspended: "waits for tools",
  detached: "moves",
  lost: "lost",
};

export function statusWord(status: string): string {
  return WORDS[status] ?? status;
}

/** A colour for a worker: the same name, the same colour, in every picture. */
export function hue(name: string): number {
  let sum = 0;
  for (const char of name) sum = (31 * sum + char.charCodeAt(0)) % 360;
  return sum;
}
