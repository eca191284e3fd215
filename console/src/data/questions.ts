/** Questions of runs in a list. The list has no texts, so each run is read when its row appears, a few at a time. */
import { type Signal, signal } from "@preact/signals";
import { get } from "./api";
import type { ApiRun } from "./record";
import { questionOf } from "./run";

const AT_ONCE = 4;
const MOST = 2000;

/** Question of a run. Null until it is read, "" if it is not stored. */
const known = new Map<string, Signal<string | null>>();
const waiting: string[] = [];
let n_reading = 0;

export function questionFor(id: string): Signal<string | null> {
  const found = known.get(id);
  if (found) return found;
  if (known.size >= MOST) known.clear();
  const question = signal<string | null>(null);
  known.set(id, question);
  waiting.push(id);
  readNext();
  return question;
}

function readNext(): void {
  const id = n_reading < AT_ONCE ? waiting.shift() : undefined;
  if (id === undefined) return;
  n_reading += 1;
  get<ApiRun>(`/v1/workflows/${encodeURIComponent(id)}`)
    .then((run) => setQuestion(id, run))
    .catch(() => known.delete(id)) // it is read again when its row is drawn again
    .finally(() => {
      n_reading -= 1;
      readNext();
    });
}

function setQuestion(id: string, run: ApiRun): void {
  const question = known.get(id);
  if (question) question.value = run.content ? questionOf(run) : "";
}

/** Forget all questions, because another key is used. */
export function forgetQuestions(): void {
  known.clear();
  waiting.length = 0;
}
