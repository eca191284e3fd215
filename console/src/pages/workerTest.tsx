/** Dialog that sends one question to a worker, and says whether and how fast it answered. */
import { useSignal } from "@preact/signals";
import { may } from "../data/access";
import { post, words } from "../data/api";
import { count, dollars, seconds } from "../data/format";
import type { ModelInfo } from "../data/models";
import { Alert, Dialog, Form } from "../parts/ui";

const QUESTION = "Reply with the single word: ready.";

interface Result {
  text: string;
  /** Worker that answered. Another one does if this one fails and has a fallback. */
  served_by: string;
  took_s: number;
  tokens: number;
  cost_usd: number | null;
  run: string | null;
}

interface Chat {
  choices: { message: { content: string | null } }[];
  usage: { total_tokens: number };
  podium: { workflow_id: string; wall_s: number; cost_usd: number | null; steps: { worker: string; served_by: string | null }[] };
}

async function askWorker(worker: string, question: string): Promise<Result> {
  const chat = await post<Chat>("/v1/chat/completions", { model: worker, messages: [{ role: "user", content: question }] });
  return {
    text: chat.choices[0]?.message.content ?? "",
    served_by: chat.podium.steps.at(-1)?.served_by ?? worker,
    took_s: chat.podium.wall_s,
    tokens: chat.usage.total_tokens,
    cost_usd: chat.podium.cost_usd,
    run: chat.podium.workflow_id,
  };
}

async function embed(worker: string, text: string): Promise<Result> {
  const began_ms = performance.now();
  const answer = await post<{ data: { embedding: number[] }[]; usage: { total_tokens: number } }>("/v1/embeddings", { model: worker, input: text });
  const n = answer.data[0]?.embedding.length ?? 0;
  return { text: `A vector of ${count(n)} numbers.`, served_by: worker, took_s: (performance.now() - began_ms) / 1000, tokens: answer.usage.total_tokens, cost_usd: null, run: null };
}

export function WorkerTest(props: { worker: ModelInfo; onClose: () => void; onRun: (id: string) => void }) {
  const { worker } = props;
  const question = useSignal(QUESTION);
  const busy = useSignal(false);
  const fault = useSignal("");
  const result = useSignal<Result | null>(null);
  const chats = worker.podium.serves?.includes("chat") ?? true;
  const test = async () => {
    busy.value = true;
    fault.value = "";
    result.value = null;
    try {
      result.value = await (chats ? askWorker : embed)(worker.id, question.value);
    } catch (error) {
      fault.value = words(error);
    }
    busy.value = false;
  };
  const answer = result.value;
  return (
    <Dialog title={`Test ${worker.id}`} onClose={props.onClose}>
      {(close) => (
        <Form class="fields" onSubmit={() => void test()}>
          <p class="soft">Sends one request to this worker, as any client would. It costs what such a request costs.</p>
          <label>
            {chats ? "Question" : "Text to embed"}
            <textarea rows={2} value={question.value} onInput={(event) => (question.value = event.currentTarget.value)} />
          </label>
          <p class="buttons">
            <button type="submit" class="go" disabled={busy.value || !question.value.trim()}>
              {busy.value ? "Waiting for the answer…" : "Send"}
            </button>
          </p>
          <Alert text={fault.value} />
          <div class="stack" role="status">
            {answer ? (
              <>
                <p class={`banner ${answer.served_by === worker.id ? "good" : "warn"}`}>
                  <span class="dot" aria-hidden="true" />{" "}
                  <strong>{answer.served_by === worker.id ? `${worker.id} answered in ${seconds(answer.took_s)}.` : `${worker.id} did not answer. ${answer.served_by} answered instead.`}</strong>{" "}
                  {count(answer.tokens)} tokens{answer.cost_usd === null ? "" : `, ${dollars(answer.cost_usd)}`}.
                </p>
                <pre class="said">{answer.text || "The answer is empty."}</pre>
                {answer.run && may("read") ? (
                  <p class="buttons">
                    <button
                      type="button"
                      onClick={() => {
                        close();
                        props.onRun(answer.run!);
                      }}
                    >
                      Open the run
                    </button>
                  </p>
                ) : null}
              </>
            ) : null}
          </div>
        </Form>
      )}
    </Dialog>
  );
}
