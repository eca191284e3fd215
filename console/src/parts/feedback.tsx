/** Buttons to rate an answer, and fields for a comment and the right answer. */
import { useSignal } from "@preact/signals";
import { post, words } from "../data/api";
import type { ApiFeedback } from "../data/record";
import { Alert } from "./ui";

export function Feedback(props: { id: string; feedback: ApiFeedback[]; keepsTexts: boolean }) {
  const mine = useSignal<ApiFeedback | null>(null);
  const comment = useSignal("");
  const expected = useSignal("");
  const fault = useSignal("");
  const send = (score: number | null) => {
    fault.value = "";
    const body = { comment: comment.value, expected: expected.value, ...(score === null ? {} : { score }) };
    post<ApiFeedback>(`/v1/workflows/${encodeURIComponent(props.id)}/feedback`, body)
      .then((feedback) => (mine.value = feedback))
      .catch((error: unknown) => (fault.value = words(error)));
  };
  const score = mine.value?.score ?? null;
  const entries = [...props.feedback.filter((each) => each.key_id !== mine.value?.key_id), ...(mine.value ? [mine.value] : [])];
  return (
    <div class="feedback" role="group" aria-label="Rate this answer">
      <button type="button" aria-pressed={score === 1} onClick={() => send(1)}>
        Good answer
      </button>
      <button type="button" aria-pressed={score === 0} onClick={() => send(0)}>
        Bad answer
      </button>
      {props.keepsTexts ? (
        <details>
          <summary>Add details</summary>
          <label class="wide">
            Right answer (needed to train on this question)
            <textarea rows={2} value={expected.value} onInput={(event) => (expected.value = event.currentTarget.value)} />
          </label>
          <label class="wide">
            Comment
            <input value={comment.value} onInput={(event) => (comment.value = event.currentTarget.value)} />
          </label>
          <button type="button" disabled={!expected.value && !comment.value} onClick={() => send(score)}>
            Save details
          </button>
        </details>
      ) : null}
      <p class="small" role="status">
        {entries.map(line).join(" ")}
      </p>
      <Alert text={fault.value} />
    </div>
  );
}

/** Format one feedback as sentences. */
function line(feedback: ApiFeedback): string {
  const score = feedback.score === null ? "" : `Rated ${Math.round(100 * feedback.score)} of 100.`;
  const labels = feedback.labels.length ? `Labels: ${feedback.labels.join(", ")}.` : "";
  const expected = feedback.expected ? `Right answer: ${feedback.expected}` : "";
  return [score, labels, feedback.comment, expected].filter(Boolean).join(" ");
}
