/** List of the newest runs, without their texts. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, words } from "./api";
import { Columns } from "./columns";
import { count, dollars, seconds, when } from "./format";
import type { ApiRun } from "./record";
import { statusWord } from "./status";

const PAGE = 50;
const STATUSES = ["running", "waiting", "finished", "failed", "cancelled", "lost"];

interface Page {
  data: ApiRun[];
  has_more: boolean;
  next_after: string | null;
}

export function Runs() {
  const runs = useSignal<ApiRun[]>([]);
  const more = useSignal("");
  const fault = useSignal("");
  const filter = useSignal({ status: "", model: "", worker: "", team: "", words: "", min_cost_usd: "", rated: "" });
  const load = async (after: string) => {
    const asked = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries(filter.value)) if (value && !(name === "words" && value.length < 3)) asked.set(name, value);
    if (after) asked.set("after", after);
    try {
      const page = await get<Page>(`/v1/workflows?${asked.toString()}`);
      runs.value = after ? [...runs.value, ...page.data] : page.data;
      more.value = page.next_after ?? "";
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
  };
  useEffect(() => {
    const timer = setTimeout(() => void load(""), 200); // wait until the user stops typing
    return () => clearTimeout(timer);
  }, [filter.value]);
  const change = (name: keyof typeof filter.value) => (event: { currentTarget: { value: string } }) => {
    filter.value = { ...filter.value, [name]: event.currentTarget.value };
  };
  return (
    <section>
      <h1>Runs</h1>
      <div class="limits">
        <label>
          Status
          <select value={filter.value.status} onChange={change("status")}>
            <option value="">any</option>
            {STATUSES.map((status) => (
              <option key={status} value={status}>
                {statusWord(status)}
              </option>
            ))}
          </select>
        </label>
        <label>
          Model
          <input value={filter.value.model} onInput={change("model")} />
        </label>
        <label>
          Worker
          <input value={filter.value.worker} onInput={change("worker")} />
        </label>
        <label>
          Team
          <input value={filter.value.team} onInput={change("team")} />
        </label>
        <label>
          Text in question or answer
          <input value={filter.value.words} placeholder="at least 3 characters" onInput={change("words")} />
        </label>
        <label>
          Minimum cost ($)
          <input type="number" min="0" step="any" value={filter.value.min_cost_usd} onInput={change("min_cost_usd")} />
        </label>
        <label class="check">
          <input type="checkbox" checked={filter.value.rated !== ""} onChange={(event) => (filter.value = { ...filter.value, rated: event.currentTarget.checked ? "true" : "" })} />
          Only rated runs
        </label>
        <button type="button" onClick={() => void load("")}>
          Refresh
        </button>
      </div>
      {fault.value ? (
        <p class="fault" role="alert">
          {fault.value}
        </p>
      ) : null}
      <div class="scrolls" role="group" aria-label="Runs" tabIndex={0}>
        <table>
          <Columns names={["Started", "Model", "Status", "Steps", "Workers", "Duration", "Tokens", "Cost", "Run"]} />
          <tbody>
            {runs.value.map((run) => (
              <tr key={run.id}>
                <td>{when(run.created)}</td>
                <td>{run.model}</td>
                <td>
                  <span class={`chip ${run.status}`}>{run.plan_only ? "plan only" : statusWord(run.status, run.finish_reason)}</span>
                </td>
                <td>{run.steps.length}</td>
                <td>{[...new Set(run.steps.map((step) => step.served_by ?? step.worker))].join(", ")}</td>
                <td>{seconds(run.wall_s)}</td>
                <td>{count(run.usage.total_tokens)}</td>
                <td>{dollars(run.cost_usd)}</td>
                <td>
                  <a href={`#/runs/${run.id}`}>{run.id.slice(0, 11)}</a>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {runs.value.length || fault.value ? null : <p role="status">{more.value ? "No match among the newest runs." : Object.values(filter.value).some(Boolean) ? "No run matches." : <>No runs yet. <a href="#/ask">Ask a question.</a></>}</p>}
      {more.value ? (
        <button type="button" onClick={() => void load(more.value)}>
          {runs.value.length ? "Show older runs" : "Search older runs"}
        </button>
      ) : null}
    </section>
  );
}
