/** Who answers: workers with their cards, models, and whether the server is well. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, headers, words } from "./api";
import type { ModelInfo } from "./ask";
import { hue } from "./status";

interface Ready {
  status: string;
  running?: number;
  [fact: string]: unknown;
}

export function Pool() {
  const models = useSignal<ModelInfo[]>([]);
  const ready = useSignal<Ready | null>(null);
  const fault = useSignal("");
  useEffect(() => {
    const load = () =>
      Promise.all([get<{ data: ModelInfo[] }>("/v1/models"), fetch("/readyz", { headers: headers() }).then((answer) => answer.json() as Promise<Ready>)])
        .then(([answer, state]) => {
          models.value = answer.data;
          ready.value = state;
          fault.value = "";
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
          {ready.value.running === undefined ? "" : `, ${ready.value.running} under way`}.
        </p>
      ) : null}
      <h2>Workers</h2>
      <ul class="cards">
        {of("worker").map((worker) => (
          <li key={worker.id} style={{ "--hue": `${hue(worker.id)}` }}>
            <h3>{worker.id}</h3>
            <p>{worker.podium.card || "No card."}</p>
            <p class="small">
              {[worker.podium.model, worker.podium.provenance, worker.podium.sees_images ? "sees images" : "", worker.podium.in_pool ? "" : "asked by name only"]
                .filter(Boolean)
                .join(" · ")}
            </p>
          </li>
        ))}
      </ul>
      <h2>Models</h2>
      <ul>
        {[...of("conductor"), ...of("workflow")].map((each) => (
          <li key={each.id}>
            <strong>{each.id}</strong> {each.podium.kind === "workflow" ? "a fixed plan" : `led by ${each.podium.conductor?.worker ?? "nobody"}`}
          </li>
        ))}
      </ul>
    </section>
  );
}
