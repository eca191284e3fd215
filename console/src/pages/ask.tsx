/** Page to ask a question with all options of a request. It shows the run next to the form, or two runs side by side. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { may, whyNot } from "../data/access";
import { get, post, send, words } from "../data/api";
import { dollars as dollarsOf } from "../data/format";
import { read } from "../data/frames";
import { loadModels, models, ofKind } from "../data/models";
import type { ApiRun } from "../data/record";
import { go } from "../data/route";
import { questionOf } from "../data/run";
import { type PlannedStep, PlanEditor } from "../parts/planEditor";
import { Sketch } from "../parts/sketch";
import { Alert, Empty, PageHead } from "../parts/ui";
import { RunView } from "./run";

/** Questions that the bundled team answers well. Its small models fail at plans of several steps. */
// The bundled conductor plans two parallel steps for the third example, and a check for the fourth.
const EXAMPLES = ["Which planet is the largest?", "What day of the week was 20 July 1969?", "First: what is the capital of Kenya? Second: convert 100 km to miles. Then list both answers.", "What is 17 % of 2,450? Verify it."];

const EFFORTS = ["none", "low", "medium", "high", "max"];

/** Send the request, and return the run's id as soon as the server has sent it. The run continues if the page is closed. */
async function ask(body: Record<string, unknown>, onText: (text: string) => void, onFault: (error: unknown) => void): Promise<string> {
  const answer = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  readAnswer(answer, onText).catch(onFault);
  return answer.headers.get("x-podium-workflow-id") ?? "";
}

/** Read the answer to its end, so that the server need not wait. Pages usually show the run's events instead. */
async function readAnswer(answer: Response, onText: (text: string) => void): Promise<void> {
  for await (const event of read(answer.body!)) {
    if (event.data === "[DONE]") return;
    const chunk = JSON.parse(event.data) as { choices?: { delta?: { content?: string } }[]; error?: { message: string } };
    if (chunk.error) throw new Error(chunk.error.message);
    onText(chunk.choices?.[0]?.delta?.content ?? "");
  }
}

/** Form for a question.
 *
 * @param from run whose question gets another plan, or null.
 * @param run run to show next to the form, or null before the first question.
 */
export function Ask(props: { from: string | null; run: string | null }) {
  const question = useSignal("");
  const model = useSignal("");
  const effort = useSignal("");
  const dollars = useSignal("");
  const deadline = useSignal("");
  const left = useSignal<Set<string>>(new Set());
  const steps = useSignal<PlannedStep[]>([]);
  const fault = useSignal("");
  const busy = useSignal(false);
  const price = useSignal("");
  /** Answer of the newest question, for keys that may not read runs. */
  const plain = useSignal<string | null>(null);
  const loading = useRef<Promise<unknown>>(Promise.resolve());
  const side = useRef<HTMLDivElement>(null);
  useEffect(() => {
    loading.current = loadModels()
      .then((all) => (model.value ||= all.find((each) => each.podium.kind === "conductor")?.id ?? all[0]?.id ?? ""))
      .catch((error: unknown) => (fault.value = words(error)));
  }, []);
  useEffect(() => {
    if (!props.from) return;
    get<ApiRun>(`/v1/workflows/${encodeURIComponent(props.from)}`)
      .then((run) => {
        const plan = run.steps.filter((step) => step.plan === run.plans.length - 1);
        steps.value = plan.map(({ worker, subtask, access }) => ({ worker, subtask, access }));
        question.value ||= questionOf(run);
        model.value = run.model;
      })
      .catch((error: unknown) => (fault.value = words(error)));
  }, [props.from]);
  useEffect(() => {
    // on a phone the run is below the form
    if (props.run && innerWidth < 900) side.current?.scrollIntoView({ block: "start" });
  }, [props.run]);
  const workers = ofKind("worker").flatMap((each) => (each.podium.in_pool ? [each.id] : []));

  /** Build the request from the form. */
  const request = (text: string) => ({
    model: model.value,
    messages: [{ role: "user", content: text }],
    ...(effort.value ? { reasoning_effort: effort.value } : {}),
    podium: {
      ...(left.value.size ? { exclude_workers: [...left.value] } : {}),
      ...(dollars.value ? { max_cost_usd: Number(dollars.value) } : {}),
      ...(deadline.value ? { deadline_s: Number(deadline.value) } : {}),
      ...(steps.value.length ? { plan: steps.value } : {}),
    },
  });

  /** Request a plan without running it. The user can then edit the plan and see its maximum cost. */
  const foresee = async () => {
    busy.value = true;
    price.value = fault.value = "";
    try {
      const draft = await post<{ plan: PlannedStep[]; worst_case_cost_usd: number | null }>("/v1/plans", request(question.value));
      steps.value = draft.plan.map(({ worker, subtask, access }) => ({ worker, subtask, access }));
      price.value = `Maximum cost of this plan: ${dollarsOf(draft.worst_case_cost_usd)}.`;
    } catch (error) {
      fault.value = words(error);
    } finally {
      busy.value = false;
    }
  };

  const dropPlan = () => {
    steps.value = [];
    price.value = "";
  };

  const submit = async (text: string) => {
    if (!text.trim() || busy.value) return;
    busy.value = true;
    fault.value = "";
    await loading.current; // a fast user may submit before the list of models has arrived
    const body = request(text);
    const reads = may("read");
    if (!reads) plain.value = "";
    try {
      const id = await ask(
        { ...body, stream: true, podium: { ...body.podium, ...(reads ? { keep: true } : {}) } },
        (piece) => reads || (plain.value = (plain.value ?? "") + piece),
        (error) => reads || (fault.value = words(error)), // otherwise the run shows its outcome
      );
      if (reads) go(props.from ? `compare/${props.from}/${id}` : `ask/${id}`);
    } catch (error) {
      fault.value = words(error);
      plain.value = null;
    } finally {
      busy.value = false;
    }
  };

  if (!may("run"))
    return (
      <section>
        <PageHead title="Ask" />
        <Empty icon="lock" title="This key cannot ask questions" action={<a href="#/runs">See the runs of your team</a>}>
          {whyNot("run")} Ask an administrator for a key with this scope.
        </Empty>
      </section>
    );
  const isReady = !busy.value && Boolean(question.value.trim());
  return (
    <div class={props.from ? "ask-page again" : "ask-page"}>
      <form
        class="ask"
        onSubmit={(event) => {
          event.preventDefault();
          void submit(question.value);
        }}
      >
        <PageHead title={props.from ? "Ask again with another plan" : "Ask"} lead={props.from ? "Change the plan or the question. Both runs are then shown side by side." : undefined} />
        <div class="card composer">
          <label>
            <span class="hidden">Your question</span>
            <textarea
              rows={4}
              placeholder="Ask the team something…"
              value={question.value}
              onInput={(event) => {
                if (price.value && event.currentTarget.value !== question.value) dropPlan(); // the plan was for the previous question
                question.value = event.currentTarget.value;
              }}
              onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void submit(question.value);
              }}
            />
          </label>
          <div class="composer-bar">
            <label>
              <span class="hidden">Model</span>
              <select value={model.value} title="Model" onChange={(event) => (model.value = event.currentTarget.value)}>
                {models.value.map((each) => (
                  <option key={each.id} value={each.id}>
                    {each.id} ({each.podium.kind})
                  </option>
                ))}
              </select>
            </label>
            <button type="submit" class="go" disabled={!isReady}>
              {busy.value ? "Asking…" : "Ask"} <kbd>Ctrl Enter</kbd>
            </button>
          </div>
        </div>
        <Alert text={fault.value} />
        {props.from || props.run ? null : (
          <div class="examples" role="group" aria-label="Examples">
            <p class="small soft">Or try one of these:</p>
            {EXAMPLES.map((text) => (
              <button
                type="button"
                key={text}
                onClick={() => {
                  dropPlan();
                  question.value = text;
                  void submit(text);
                }}
              >
                {text}
              </button>
            ))}
          </div>
        )}
        {steps.value.length ? (
          <>
            <PlanEditor steps={steps} workers={workers} />
            <p class="buttons">
              <button type="button" onClick={dropPlan}>
                Let the conductor write the plan
              </button>
            </p>
          </>
        ) : (
          <p class="buttons">
            <button type="button" disabled={!isReady} onClick={() => void foresee()}>
              Preview the plan
            </button>
            <button type="button" disabled={!workers.length} onClick={() => (steps.value = [{ worker: workers[0] ?? "", subtask: "", access: [] }])}>
              Write my own plan
            </button>
          </p>
        )}
        <p role="status" class="note">
          {price.value}
        </p>
        <details class="options">
          <summary>Effort, limits and workers</summary>
          <div class="fields two">
            <label>
              Effort
              <select value={effort.value} onChange={(event) => (effort.value = event.currentTarget.value)}>
                <option value="">default of the model</option>
                {EFFORTS.map((each) => (
                  <option key={each} value={each}>
                    {each}
                  </option>
                ))}
              </select>
            </label>
            <label>
              Maximum cost ($)
              <input type="number" min="0" step="any" placeholder="no limit" value={dollars.value} onInput={(event) => (dollars.value = event.currentTarget.value)} />
            </label>
            <label>
              Time limit (s)
              <input type="number" min="0" step="any" placeholder="no limit" value={deadline.value} onInput={(event) => (deadline.value = event.currentTarget.value)} />
            </label>
          </div>
          <fieldset>
            <legend>Workers</legend>
            {workers.map((name) => (
              <label class="check" key={name}>
                <input
                  type="checkbox"
                  checked={!left.value.has(name)}
                  onChange={(event) => {
                    const next = new Set(left.value);
                    event.currentTarget.checked ? next.delete(name) : next.add(name);
                    left.value = next;
                  }}
                />
                {name}
              </label>
            ))}
          </fieldset>
        </details>
      </form>
      {props.from ? null : (
        <section class={props.run ? "beside has-run" : "beside"} ref={side} aria-label="The answer">
          {props.run ? <RunView key={props.run} id={props.run} beside /> : plain.value === null ? <Welcome /> : <PlainAnswer text={plain.value} />}
        </section>
      )}
    </div>
  );
}

/** Right column before the first question. */
function Welcome() {
  const n = ofKind("worker").filter((each) => each.podium.in_pool).length;
  return (
    <div class="welcome">
      <Sketch />
      <h2>A team answers</h2>
      <p class="soft">
        The conductor writes a plan for your question. {n > 1 ? `The ${n} workers of the pool` : "The workers of the pool"} run its steps, in parallel where they can. You watch
        the plan, every step and the answer here while they are written.
      </p>
    </div>
  );
}

/** Answer alone, for a key that may ask but not read runs. */
function PlainAnswer(props: { text: string }) {
  return (
    <div class="card answer">
      <h2>Answer</h2>
      <pre class="said">{props.text || "No answer yet."}</pre>
      <p class="note small">{whyNot("read")} So you see the answer, but not the plan and its steps.</p>
    </div>
  );
}

/** Two runs side by side. */
export function Compare(props: { ids: string[] }) {
  return (
    <div class="compare">
      {props.ids.map((id, index) => (
        <section key={index} aria-label={`Run ${index + 1} of ${props.ids.length}`}>
          <RunView id={id} />
        </section>
      ))}
    </div>
  );
}
