/** A thumb for an answer, and the answer that had been right. */
import { useSignal } from "@preact/signals";
import { post, words } from "./api";
import type { ApiFeedback } from "./record";

export function Feedback(props: { id: string; given: ApiFeedback[]; keepsTexts: boolean }) {
  const mine = useSignal<ApiFeedback | null>(null);
  const comment = useSignal("");
  const expected = useSignal("");
  const fault = useSignal("");
  const send = (score: number | null) => {
    fault.value = "";
    const said = { comment: comment.value, expected: expected.value, ...(score === null ? {} : { score }) };
    post<ApiFeedback>(`/v1/workflows/${encodeURIComponent(props.id)}/feedback`, said)
      .then((kept) => (mine.value = kept))
      .catch((error: unknown) => (fault.value = words(error)));
  };
  const score = mine.value?.score ?? null;
  const said = [...props.given.filter((each) => each.key_id !== mine.value?.key_id), ...(mine.value ? [mine.value] : [])];
  return (
    <div class="feedback" role="group" aria-label="Is this a good answer?">
      <button type="button" aria-pressed={score === 1} onClick={() => send(1)}>
        Good answer
      </button>
      <button type="button" aria-pressed={score === 0} onClick={() => send(0)}>
        Bad answer
      </button>
      {props.keepsTexts ? (
        <details>
          <summary>Say more</summary>
          <label class="wide">
            What had been right (the question can then be trained on)
            <textarea rows={2} value={expected.value} onInput={(event) => (expected.value = event.currentTarget.value)} />
          </label>
          <label class="wide">
            A comment
            <input value={comment.value} onInput={(event) => (comment.value = event.currentTarget.value)} />
          </label>
          <button type="button" disabled={!expected.value && !comment.value} onClick={() => send(score)}>
            Keep what I say
          </button>
        </details>
      ) : null}
      <p class="small" role="status">
        {said.map(line).join(" ")}
      </p>
      <p class="fault" role="alert">
        {fault.value}
      </p>
    </div>
  );
}

/** What somebody said, as a sentence. */
function line(said: ApiFeedback): string {
  const score = said.score === null ? "" : `Rated ${Math.round(100 * said.score)} of 100.`;
  const labels = said.labels.length ? `Labels: ${said.labels.join(", ")}.` : "";
  const expected = said.expected ? `Right had been: ${said.expected}` : "";
  return [score, labels, said.comment, expected].filter(Boolean).join(" ");
}
