/** Workers with their cards and health, models, and the status of the server. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, headers, words } from "./api";
import type { ModelInfo } from "./ask";
import { Columns } from "./columns";
import { seconds } from "./format";
import { hue } from "./status";

interface Ready {
  status: string;
  running?: number;
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
  failing: { since: string | null; first: { message: string; detail: string } | null } | null;
  first_token_p50_s: number | null;
  first_token_p95_s: number | null;
}

function priceOf(worker: ModelInfo): string {
  const price = worker.podium.price;
  if (!price) return "price unknown";
  if (!price.input_usd_per_mtok && !price.output_usd_per_mtok) return "free";
  return `$${price.input_usd_per_mtok} in, $${price.output_usd_per_mtok} out per million tokens`;
}

/** Describe the health of a worker. It is not called while its circuit is `open`, after too many failures. */
function stateOf(worker: WorkerState, circuit: ModelInfo["podium"]["circuit"]): string {
  if (worker.rests_s) return `paused for ${seconds(worker.rests_s)}${worker.opened_elsewhere ? ", because its calls fail at another router" : ""}`;
  return { open: "paused after failed calls", half_open: "being tested", closed: "healthy" }[circuit ?? "closed"];
}

/** Health of the workers on this router. */
function State(props: { workers: WorkerState[]; circuits: Map<string, ModelInfo["podium"]["circuit"]> }) {
  return (
    <>
      <h2>Health of the workers on this router</h2>
      <div class="scrolls" role="group" aria-label="State of workers" tabIndex={0}>
        <table>
          <Columns names={["Worker", "Running calls", "Queued calls", "Recent calls", "First token p50", "First token p95", "State"]} />
          <tbody>
            {props.workers.map((each) => (
              <tr key={each.id}>
                <td>{each.id}</td>
                <td>{each.slots === null ? "" : `${each.open_calls ?? 0} of ${each.slots}`}</td>
                <td>{each.queued ?? ""}</td>
                <td>{each.succeeded + each.failed ? `${each.succeeded} succeeded, ${each.failed} failed` : "none yet"}</td>
                <td>{seconds(each.first_token_p50_s)}</td>
                <td>{seconds(each.first_token_p95_s)}</td>
                <td>
                  {stateOf(each, props.circuits.get(each.id))}
                  {each.failing?.first ? (
                    <p class="fault">
                      Failing since {each.failing.since}: {each.failing.first.message} <small>{each.failing.first.detail}</small>
                    </p>
                  ) : null}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

export function Pool() {
  const models = useSignal<ModelInfo[]>([]);
  const ready = useSignal<Ready | null>(null);
  const fault = useSignal("");
  const state = useSignal<WorkerState[]>([]);
  useEffect(() => {
    let mayAskState = true;
    const load = () =>
      Promise.all([get<{ data: ModelInfo[] }>("/v1/models"), fetch("/readyz", { headers: headers() }).then((answer) => answer.json() as Promise<Ready>)])
        .then(([answer, ready_]) => {
          models.value = answer.data;
          ready.value = ready_;
          fault.value = "";
          // only administrators may read this; other users see the page without it
          if (mayAskState)
            return get<{ data: WorkerState[] }>("/v1/workers")
              .then((told) => void (state.value = told.data))
              .catch(() => void (mayAskState = false));
          return undefined;
        })
        .catch((error: unknown) => (fault.value = words(error)));
    void load();
    const timer = setInterval(() => void load(), 5000);
    return () => clearInterval(timer);
  }, []);
  const of = (kind: string) => models.value.filter((each) => each.podium.kind === kind);
  return (
    <section>
      <h1>Pool</h1>
      {fault.value ? (
        <p class="fault" role="alert">
          {fault.value}
        </p>
      ) : null}
      {ready.value ? (
        <p role="status">
          The server is <span class="chip">{ready.value.status}</span>
          {ready.value.running === undefined ? "" : `. Running runs: ${ready.value.running}`}.
        </p>
      ) : null}
      <h2>Workers</h2>
      <ul class="cards">
        {of("worker").map((worker) => (
          <li key={worker.id} style={{ "--hue": `${hue(worker.id)}` }}>
            <h3>{worker.id}</h3>
            <p>{worker.podium.card || "No card."}</p>
            {worker.podium.adapter ? <p class="small">Uses the adapter {worker.podium.adapter}.</p> : null}
            <p class="small">
              {[worker.podium.model, priceOf(worker), worker.podium.provenance, worker.podium.sees_images ? "accepts images" : "", worker.podium.in_pool ? "" : "called only by name"]
                .filter(Boolean)
                .join(" · ")}
            </p>
          </li>
        ))}
      </ul>
      {state.value.length ? <State workers={state.value} circuits={new Map(of("worker").map((each) => [each.id, each.podium.circuit]))} /> : null}
      <h2>Models</h2>
      <ul>
        {[...of("conductor"), ...of("workflow")].map((each) => (
          <li key={each.id}>
            <strong>{each.id}</strong> {each.podium.kind === "workflow" ? "a fixed plan" : `plans by ${each.podium.conductor?.worker ?? "an unknown conductor"}`}
          </li>
        ))}
      </ul>
    </section>
  );
}
