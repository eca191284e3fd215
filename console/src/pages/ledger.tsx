/** Newest entries of the ledger. Needs a key with the scope `admin`. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, words } from "../data/api";
import { count, dollars, stamp } from "../data/format";
import { keyName, teamName } from "../data/names";
import { Alert, type Column, Empty, Table } from "../parts/ui";

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

const COLUMNS: Column<Line>[] = [
  { name: "Worker", main: true, cell: (line) => (line.kind === "call" ? line.worker : `${line.kind} ${line.worker ?? ""}`) },
  { name: "Time", cell: (line) => <time>{stamp(line.created_at)}</time> },
  { name: "Team", cell: (line) => teamName(line.team_id) || <span class="soft">none</span> },
  { name: "Key", cell: (line) => keyName(line.key_id) },
  { name: "Tokens in", numeric: true, cell: (line) => count(line.input_tokens) },
  { name: "Tokens out", numeric: true, cell: (line) => count(line.output_tokens) },
  { name: "Cost", numeric: true, usd: (line) => Number(line.cost_usd), cell: (line, most) => `${line.exact ? "" : "at most "}${dollars(Number(line.cost_usd), most)}` },
  { name: "Run", cell: (line) => (line.run_id ? <a href={`#/runs/${line.run_id}`}>{line.run_id.slice(0, 11)}</a> : null) },
];

export function Ledger() {
  const lines = useSignal<Line[] | null>(null);
  const more = useSignal(false);
  const fault = useSignal("");
  const load = (after: number | null) => {
    const path = `/v1/admin/ledger?limit=${PAGE}${after === null ? "" : `&after=${after}`}`;
    get<{ data: Line[]; has_more: boolean }>(path)
      .then((page) => {
        lines.value = after === null ? page.data : [...(lines.value ?? []), ...page.data];
        more.value = page.has_more;
      })
      .catch((error: unknown) => (fault.value = words(error)));
  };
  useEffect(() => load(null), []);
  const shown = lines.value ?? [];
  return (
    <div class="card">
      <h2>Ledger</h2>
      <p class="soft">Every call that cost something, newest first. Entries are only added, never changed.</p>
      <Alert text={fault.value} />
      {shown.length ? <Table label="Ledger" columns={COLUMNS} rows={shown} id={(line) => String(line.id)} /> : null}
      {lines.value && !shown.length ? (
        <Empty icon="file" title="Nothing has been spent yet.">
          Calls of workers without a price do not appear here.
        </Empty>
      ) : null}
      {more.value ? (
        <p class="buttons center">
          <button type="button" onClick={() => load(shown.at(-1)?.id ?? null)}>
            Show older entries
          </button>
        </p>
      ) : null}
    </div>
  );
}
