/** Form to ask a question with all options of a request, and the comparison of two runs side by side. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, post, send, words } from "./api";
import { dollars as dollarsOf } from "./format";
import { type PlannedStep, PlanEditor } from "./planEditor";
import { go } from "./route";
import type { ApiRun } from "./record";
import { questionOf } from "./run";
import { RunView } from "./runView";
import { read } from "./frames";

export interface ModelInfo {
  id: string;
  podium: {
    kind: "conductor" | "workflow" | "worker";
    card?: string;
    /** Dollars per million tokens, or null if the price is unknown. */
    price?: { input_usd_per_mtok: number; output_usd_per_mtok: number } | null;
    sees_images?: boolean;
    in_pool?: boolean;
    model?: string;
    provenance?: string | null;
    /** LoRA adapter of the worker, or null if it uses none. */
    adapter?: string | null;
    /** State of the worker's circuit breaker. It gets no calls while the circuit is open. */
    circuit?: "closed" | "open" | "half_open";
    conductor?: { worker: string; model: string };
  };
}

const EXAMPLES = [
  "Which planet is the largest, and how much heavier is it than the Earth?",
  "Write a poem of four lines about autumn in Lisbon, then translate it into French.",
  "A train leaves at 14:35 and arrives at 17:10. How long does it take? Check the result.",
];

/** Send the request, and return the run's id as soon as it is known. The run continues if the page is closed. */
async function ask(body: Record<string, unknown>): Promise<string> {
  const answer = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const id = answer.headers.get("x-podium-workflow-id") ?? "";
  void drain(answer); // the page of the run shows the answer
  return id;
}

async function drain(answer: Response): Promise<void> {
  try {
    for await (const _ of read(answer.body!)) void _;
  } catch {
    // the page of the run shows its outcome
  }
}

export function Ask(props: { from: string | null }) {
  const models = useSignal<ModelInfo[]>([]);
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
  const loading = useRef<Promise<unknown>>(Promise.resolve());
  useEffect(() => {
    loading.current = get<{ data: ModelInfo[] }>("/v1/models")
      .then((answer) => {
        models.value = answer.data;
        model.value ||= answer.data.find((each) => each.podium.kind === "conductor")?.id ?? answer.data[0]?.id ?? "";
      })
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
  const workers = models.value.filter((each) => each.podium.kind === "worker" && each.podium.in_pool).map((each) => each.id);

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
      const told = await post<{ plan: PlannedStep[]; worst_case_cost_usd: number | null }>("/v1/plans", request(question.value));
      steps.value = told.plan.map(({ worker, subtask, access }) => ({ worker, subtask, access }));
      price.value = `Maximum cost of this plan: ${dollarsOf(told.worst_case_cost_usd)}.`;
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
    const asked = request(text);
    try {
      const id = await ask({ ...asked, stream: true, podium: { ...asked.podium, keep: true } });
      go(props.from ? `compare/${props.from}/${id}` : `runs/${id}`);
    } catch (error) {
      fault.value = words(error);
    } finally {
      busy.value = false;
    }
  };

  return (
    <form
      class="ask"
      onSubmit={(event) => {
        event.preventDefault();
        void submit(question.value);
      }}
    >
      <h1>{props.from ? "Ask again with another plan" : "Ask"}</h1>
      <label class="wide">
        Your question
        <textarea
          rows={5}
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
      {props.from ? null : (
        <div class="examples" role="group" aria-label="Examples">
          <p class="small">Or ask an example question:</p>
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
      <div class="limits">
        <label>
          Model
          <select value={model.value} onChange={(event) => (model.value = event.currentTarget.value)}>
            {models.value.map((each) => (
              <option key={each.id} value={each.id}>
                {each.id} ({each.podium.kind})
              </option>
            ))}
          </select>
        </label>
        <label>
          Effort
          <select value={effort.value} onChange={(event) => (effort.value = event.currentTarget.value)}>
            {["", "none", "low", "medium", "high", "max"].map((each) => (
              <option key={each} value={each}>
                {each || "default of the model"}
              </option>
            ))}
          </select>
        </label>
        <label>
          Maximum cost ($)
          <input type="number" min="0" step="any" value={dollars.value} onInput={(event) => (dollars.value = event.currentTarget.value)} />
        </label>
        <label>
          Time limit (s)
          <input type="number" min="0" step="any" value={deadline.value} onInput={(event) => (deadline.value = event.currentTarget.value)} />
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
      {steps.value.length ? (
        <>
          <PlanEditor steps={steps} workers={workers} />
          <button type="button" onClick={dropPlan}>
            Let the conductor write the plan
          </button>
        </>
      ) : (
        <button type="button" disabled={!workers.length} onClick={() => (steps.value = [{ worker: workers[0] ?? "", subtask: "", access: [] }])}>
          Write my own plan
        </button>
      )}
      <p class="fault" role="alert">
        {fault.value}
      </p>
      <p role="status">{price.value}</p>
      <button type="button" disabled={busy.value || !question.value.trim()} onClick={() => void foresee()}>
        Preview the plan
      </button>{" "}
      <button type="submit" class="go" disabled={busy.value || !question.value.trim()}>
        {busy.value ? "Asking…" : "Ask"} <kbd>Ctrl Enter</kbd>
      </button>
    </form>
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

/** A run's page. */
export function RunPage(props: { id: string }) {
  return <RunView id={props.id} />;
}
