/** Newest entries of the ledger. Needs a key with the scope `admin`. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, words } from "./api";
import { Columns } from "./columns";
import { count, dollars } from "./format";

interface Line {
  id: number;
  kind: string;
  run_id: string | null;
  key_id: string;
  team_id: string | null;
  worker: string | null;
  cost_usd: string;
  exact: boolean;
  input_tokens: number | null;
  output_tokens: number | null;
  created_at: string;
}

const PAGE = 25;

export function Ledger(props: { teams: Map<string, string>; keys: Map<string, string> }) {
  const lines = useSignal<Line[]>([]);
  const more = useSignal(false);
  const fault = useSignal("");
  const load = (after: number | null) => {
    const asked = `/v1/admin/ledger?limit=${PAGE}${after === null ? "" : `&after=${after}`}`;
    get<{ data: Line[]; has_more: boolean }>(asked)
      .then((page) => {
        lines.value = after === null ? page.data : [...lines.value, ...page.data];
        more.value = page.has_more;
      })
      .catch((error: unknown) => (fault.value = words(error)));
  };
  useEffect(() => load(null), []);
  return (
    <>
      <h2>Ledger</h2>
      {fault.value ? <p class="fault">{fault.value}</p> : null}
      <div class="scrolls" role="group" aria-label="Ledger" tabIndex={0}>
        <table>
          <Columns names={["Time", "Team", "Key", "Worker", "Tokens in", "Tokens out", "Cost", "Run"]} />
          <tbody>
            {lines.value.map((line) => (
              <tr key={line.id}>
                <td>{new Date(line.created_at).toLocaleString()}</td>
                <td>{line.team_id ? (props.teams.get(line.team_id) ?? line.team_id) : ""}</td>
                <td>{props.keys.get(line.key_id) ?? line.key_id}</td>
                <td>{line.kind === "call" ? line.worker : `${line.kind} ${line.worker ?? ""}`}</td>
                <td>{count(line.input_tokens)}</td>
                <td>{count(line.output_tokens)}</td>
                <td>
                  {line.exact ? "" : "at most "}
                  {dollars(Number(line.cost_usd))}
                </td>
                <td>{line.run_id ? <a href={`#/runs/${line.run_id}`}>{line.run_id.slice(0, 11)}</a> : null}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {lines.value.length || fault.value ? null : <p role="status">Nothing has been spent yet.</p>}
      {more.value ? (
        <button type="button" onClick={() => load(lines.value.at(-1)?.id ?? null)}>
          Show older entries
        </button>
      ) : null}
    </>
  );
}
