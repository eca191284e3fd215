/** Workers with their cards and health, models, and the status of the server. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { may, myKey, whyNot } from "../data/access";
import { get, headers, words } from "../data/api";
import { hue } from "../data/colours";
import { count, plural, seconds } from "../data/format";
import { loadModels, type ModelInfo, models, ofKind, priceOf } from "../data/models";
import { go } from "../data/route";
import { Icon } from "../parts/icons";
import { Alert, Empty, PageHead, useEvery } from "../parts/ui";
import { WorkerTest } from "./workerTest";

const EVERY_MS = 3000;

interface Ready {
  status: string;
  running?: number;
  waiting_for?: string[];
  failing?: { worker: string }[];
  conductor?: { reason: string };
  [fact: string]: unknown;
}

/** A worker in `GET /v1/workers`. */
interface WorkerState {
  id: string;
  slots: number | null;
  open_calls: number | null;
  queued: number | null;
  succeeded: number;
  failed: number;
  rests_s: number;
  opened_elsewhere: boolean;
  /** Time and cause of the first failure, or null if the worker does not fail. */
  failing: { since: string | null; failures_in_a_row: number; first: { message: string; detail: string } | null } | null;
  first_token_p50_s: number | null;
  first_token_p95_s: number | null;
  fallbacks: { worker: string; chosen: string }[];
}

interface Health {
  /** Colour of the words. */
  level: "good" | "warn" | "bad";
  words: string;
  /** Explanation of the state, and of the next event. */
  meaning: string;
}

/** Describe a worker's circuit breaker for people who do not know the term. */
function healthOf(worker: ModelInfo, state: WorkerState | undefined): Health {
  const failures = state?.failing?.failures_in_a_row ?? 0;
  const elsewhere = state?.opened_elsewhere ? " Its calls fail at another router." : failures ? ` ${plural(failures, "call")} failed in a row.` : "";
  switch (worker.podium.circuit) {
    case "open":
      return { level: "bad", words: "Circuit open", meaning: `It gets no calls if another worker can answer.${elsewhere}${state?.rests_s ? ` It is tried again in ${seconds(state.rests_s)}.` : ""}` };
    case "half_open":
      return { level: "warn", words: "Testing", meaning: `The next call tests whether it answers again.${elsewhere}` };
    default:
      return failures ? { level: "warn", words: "Failing", meaning: `${plural(failures, "call")} failed in a row. After a few more, its circuit opens.` } : { level: "good", words: "Healthy", meaning: "" };
  }
}

const SERVER: Record<string, readonly [Health["level"], string]> = {
  ready: ["good", "The server is ready."],
  degraded: ["warn", "The server answers, but something fails."],
  starting: ["warn", "The server is starting."],
  unavailable: ["bad", "No worker can answer."],
};

export function Pool() {
  const ready = useSignal<Ready | null>(null);
  const fault = useSignal("");
  const states = useSignal<WorkerState[]>([]);
  const tested = useSignal<ModelInfo | null>(null);
  const seesStates = !myKey() || may("admin");
  const load = async () => {
    try {
      const [answer] = await Promise.all([fetch("/readyz", { headers: headers() }), loadModels()]);
      ready.value = (await answer.json()) as Ready;
      if (seesStates) states.value = (await get<{ data: WorkerState[] }>("/v1/workers")).data;
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
  };
  useEffect(() => void load(), []);
  useEvery(EVERY_MS, true, load);
  const workers = ofKind("worker");
  const inPool = workers.filter((each) => each.podium.in_pool);
  const others = workers.filter((each) => !each.podium.in_pool);
  const stateOf = (id: string) => states.value.find((each) => each.id === id);
  const list = (of: ModelInfo[]) => (
    <ul class="cards">
      {of.map((worker) => (
        <WorkerCard key={worker.id} worker={worker} state={stateOf(worker.id)} onTest={() => (tested.value = worker)} />
      ))}
    </ul>
  );
  return (
    <section>
      <PageHead title="Pool" lead="Workers of the pool and their state." />
      <Alert text={fault.value} />
      {ready.value ? <ServerState ready={ready.value} /> : null}
      <h2>Workers in the pool</h2>
      {inPool.length ? list(inPool) : models.value.length ? <Empty icon="pool" title="No worker is in the pool.">Your key’s policy may exclude all of them.</Empty> : null}
      {others.length ? (
        <>
          <h2>Workers called only by name</h2>
          <p class="soft">The conductor does not choose these workers. Requests can call them by name. The conductor is often one of them.</p>
          {list(others)}
        </>
      ) : null}
      <h2>Models</h2>
      <ul class="cards models">
        {[...ofKind("conductor"), ...ofKind("workflow")].map((each) => (
          <li key={each.id} class="card">
            <h3>{each.id}</h3>
            <p class="soft">{each.podium.kind === "workflow" ? "A fixed plan." : `Plans are written by ${each.podium.conductor?.worker ?? "a conductor that your key does not see"}.`}</p>
          </li>
        ))}
      </ul>
      {seesStates ? null : <p class="small soft">Slots, newest calls and latencies of the workers are shown to keys with the scope admin.</p>}
      {tested.value ? <WorkerTest worker={tested.value} onClose={() => (tested.value = null)} onRun={(id) => go(`runs/${id}`)} /> : null}
    </section>
  );
}

function ServerState(props: { ready: Ready }) {
  const { ready } = props;
  const [level, text] = SERVER[ready.status] ?? ["warn", `The server is ${ready.status}.`];
  const details = [
    ready.running ? `${plural(ready.running, "running run")}.` : "",
    ready.waiting_for?.length ? `Not ready: ${ready.waiting_for.join(", ")}.` : "",
    ready.failing?.length ? `Failing: ${ready.failing.map((each) => each.worker).join(", ")}.` : "",
    ready.conductor ? `The conductor fails: ${ready.conductor.reason}.` : "",
    ready.store ? "The store is unreachable." : "",
    ready.refused_user_config ? `New settings were rejected: ${String(ready.refused_user_config)}` : "",
  ];
  return (
    <p class={`banner ${level}`} role="status">
      <span class="dot" aria-hidden="true" /> <strong>{text}</strong> {details.filter(Boolean).join(" ")}
    </p>
  );
}

function WorkerCard(props: { worker: ModelInfo; state: WorkerState | undefined; onTest: () => void }) {
  const { worker, state } = props;
  const { podium } = worker;
  const health = healthOf(worker, state);
  const can = [podium.sees_images ? "images" : "", podium.reads_pdfs ? "PDFs" : "", podium.calls_tools ? "tools" : ""].filter(Boolean);
  return (
    <li class="card worker" style={{ "--hue": `${hue(worker.id)}` }}>
      <header>
        <h3>{worker.id}</h3>
        <span class={`state ${health.level}`}>
          <span class="dot" aria-hidden="true" /> {health.words}
        </span>
      </header>
      <p>{podium.card || <span class="soft">No card.</span>}</p>
      {health.meaning ? <p class="small">{health.meaning}</p> : null}
      {state?.failing?.first ? (
        <details class="small">
          <summary>Why, since {state.failing.since ? new Date(state.failing.since).toLocaleTimeString() : "its last success"}</summary>
          <p class="fault">
            {state.failing.first.message} <small>{state.failing.first.detail}</small>
          </p>
        </details>
      ) : null}
      {podium.adapter ? <p class="small">Uses the adapter {podium.adapter}.</p> : null}
      <p class="small soft">
        {[podium.model, priceOf(worker), podium.provenance, can.length ? `accepts ${can.join(", ")}` : ""].filter(Boolean).join(" · ")}
      </p>
      {state ? <Calls state={state} /> : null}
      <footer>
        <button type="button" disabled={!may("run")} title={may("run") ? undefined : whyNot("run")} onClick={props.onTest}>
          <Icon name="test" /> Test <span class="hidden">{worker.id}</span>
        </button>
        {state?.fallbacks.length ? (
          <span class="small soft">
            Falls back to {state.fallbacks.slice(0, 3).map((each) => each.worker).join(", ")}
            {state.fallbacks.length > 3 ? ` and ${state.fallbacks.length - 3} more` : ""}
          </span>
        ) : null}
      </footer>
    </li>
  );
}

/** Calls of a worker on this router. */
function Calls(props: { state: WorkerState }) {
  const { state } = props;
  const n = state.succeeded + state.failed;
  return (
    <dl class="numbers">
      <div>
        <dt>Newest calls</dt>
        <dd>{n ? `${count(state.succeeded)} ok${state.failed ? `, ${count(state.failed)} failed` : ""}` : "none yet"}</dd>
      </div>
      <div>
        <dt>First token</dt>
        <dd>{state.first_token_p50_s === null ? "–" : `${seconds(state.first_token_p50_s)}, p95 ${seconds(state.first_token_p95_s)}`}</dd>
      </div>
      {state.slots === null ? null : (
        <div>
          <dt>Slots in use</dt>
          <dd>
            {state.open_calls ?? 0} of {state.slots}
            {state.queued ? `, ${state.queued} waiting` : ""}
          </dd>
        </div>
      )}
    </dl>
  );
}
