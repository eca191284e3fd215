/** Words for the status of runs and steps. */

const WORDS: Record<string, string> = {
  planned: "waiting",
  running: "running",
  waiting: "waiting for tools",
  done: "done",
  failed: "failed",
  not_needed: "not needed",
  cancelled: "cancelled",
  finished: "finished",
  expired: "timed out waiting for tools",
  detached: "moving to another server",
  lost: "lost",
};

const CUT: Record<string, string> = { length: "cut off", content_filter: "cut off by a content filter" };

/** Say why an answer is incomplete, by its finish reason, or return "" if it is complete. */
export function cutWord(status: string, finish: string | null | undefined): string {
  return status === "finished" || status === "done" ? (CUT[finish ?? ""] ?? "") : "";
}

export function statusWord(status: string, finish?: string | null): string {
  const cut = cutWord(status, finish);
  return (WORDS[status] ?? status) + (cut ? `, ${cut}` : "");
}
