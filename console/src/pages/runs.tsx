/** List of the newest runs. Its first page is live. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { administers, may, whyNot } from "../data/access";
import { get, words } from "../data/api";
import { ago, brief, compact, dollars, percent, plural, seconds, when } from "../data/format";
import { loadModels, models, ofKind } from "../data/models";
import { keyName, loadNames, teamName, teams } from "../data/names";
import type { ApiRun } from "../data/record";
import { parameters, route, setParameters } from "../data/route";
import { OVER, questionOf } from "../data/run";
import { statusWord } from "../data/status";
import { Alert, type Column, Empty, PageHead, Table, useEvery } from "../parts/ui";

const PAGE = 50;
const EVERY_MS = 3000;
const STATUSES = ["running", "waiting", "finished", "failed", "cancelled", "lost"];
const NO_FILTER = { status: "", model: "", worker: "", team: "", words: "", conversation: "", min_cost_usd: "", rated: "" };
type Filter = typeof NO_FILTER;
const FEWEST_CHARS = 3;

interface Page {
  data: ApiRun[];
  has_more: boolean;
  next_after: string | null;
}

export function Runs() {
  if (!may("read"))
    return (
      <section>
        <PageHead title="Runs" />
        <Empty icon="lock" title="This key cannot read runs">
          {whyNot("read")} Ask an administrator for a key with this scope.
        </Empty>
      </section>
    );
  return <RunList />;
}

function RunList() {
  const runs = useSignal<ApiRun[] | null>(null);
  const more = useSignal("");
  const fault = useSignal("");
  const live = useSignal(true);
  const now_s = useSignal(Date.now() / 1000);
  const filter = useSignal<Filter>(filterOfAddress());
  const newest = useRef(0);
  const isFiltered = Object.values(filter.value).some(Boolean);

  const read = (after: string): Promise<Page> => {
    const asked = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries(filter.value)) if (value && !(name === "words" && value.length < FEWEST_CHARS)) asked.set(name, value);
    if (after) asked.set("after", after);
    return get<Page>(`/v1/workflows?${asked.toString()}`);
  };
  /** Read the first page again. Older pages that are shown stay, unless so many runs are new that there is a gap. */
  const refresh = async (isNew: boolean) => {
    const turn = ++newest.current;
    try {
      const page = await read("");
      if (turn !== newest.current) return; // the filter has changed since
      const known = new Set(page.data.map((run) => run.id));
      const older = isNew ? [] : (runs.value ?? []);
      const connects = older.some((run) => known.has(run.id));
      const kept = connects ? older.slice(older.findLastIndex((run) => known.has(run.id)) + 1) : [];
      runs.value = [...page.data, ...kept];
      if (!kept.length) more.value = page.next_after ?? "";
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
    now_s.value = Date.now() / 1000;
  };
  const readOlder = async () => {
    try {
      const page = await read(more.value);
      runs.value = [...(runs.value ?? []), ...page.data];
      more.value = page.next_after ?? "";
    } catch (error) {
      fault.value = words(error);
    }
  };
  useEffect(() => {
    // the address changes with the filter, or because the user follows a link
    const named = filterOfAddress();
    if (JSON.stringify(named) !== JSON.stringify(filter.value)) filter.value = named;
  }, [route.value]);
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) setParameters(filter.value);
    const timer = setTimeout(() => void refresh(true), isFirst.current ? 0 : 200); // wait until the user stops typing
    isFirst.current = false;
    return () => clearTimeout(timer);
  }, [filter.value]);
  useEffect(() => {
    void loadNames().catch(() => undefined);
    void loadModels().catch(() => undefined);
  }, []);
  useEvery(EVERY_MS, live.value, () => refresh(false));
  const change = (name: keyof Filter) => (event: { currentTarget: { value: string } }) => {
    filter.value = { ...filter.value, [name]: event.currentTarget.value };
  };
  const shown = runs.value ?? [];
  return (
    <section>
      <PageHead title="Runs" lead="Every request is a run: its plan, its steps, its cost.">
        <button type="button" class={live.value ? "live on" : "live"} aria-pressed={live.value} onClick={() => (live.value = !live.value)}>
          <span class="dot" aria-hidden="true" /> Live
        </button>
      </PageHead>
      <Filters filter={filter.value} change={change} onRated={(on) => (filter.value = { ...filter.value, rated: on ? "true" : "" })} onClear={isFiltered ? () => (filter.value = { ...NO_FILTER }) : null} />
      <Alert text={fault.value} />
      {shown.length ? <Table label="Runs" columns={columns(now_s.value)} rows={shown} id={(run) => run.id} classOf={(run) => (OVER.has(run.status) ? "" : "under-way")} /> : null}
      {shown.length || fault.value || runs.value === null ? null : <NoRuns isFiltered={isFiltered} hasMore={more.value !== ""} />}
      {more.value ? (
        <p class="buttons center">
          <button type="button" onClick={() => void readOlder()}>
            {shown.length ? "Show older runs" : "Search older runs"}
          </button>
        </p>
      ) : null}
    </section>
  );
}

function filterOfAddress(): Filter {
  return { ...NO_FILTER, ...Object.fromEntries([...parameters()].filter(([name]) => name in NO_FILTER)) };
}

function NoRuns(props: { isFiltered: boolean; hasMore: boolean }) {
  if (props.hasMore)
    return (
      <Empty icon="search" title="No match among the newest runs.">
        Older runs have not been searched yet.
      </Empty>
    );
  if (props.isFiltered)
    return (
      <Empty icon="search" title="No run matches.">
        Change or clear the filter.
      </Empty>
    );
  return (
    <Empty icon="runs" title="No runs yet." action={may("run") ? <a class="button go" href="#/ask">Ask a question</a> : null}>
      Runs appear here as soon as somebody sends a request to this server.
    </Empty>
  );
}

function Filters(props: { filter: Filter; change: (name: keyof Filter) => (event: { currentTarget: { value: string } }) => void; onRated: (on: boolean) => void; onClear: (() => void) | null }) {
  const { filter, change } = props;
  const isOpen = useRef(Boolean(filter.worker || filter.team || filter.conversation || filter.min_cost_usd || filter.rated)).current;
  return (
    <div class="filters" role="search" aria-label="Filter runs">
      <label class="grow">
        <span class="hidden">Text in question or answer</span>
        <input type="search" value={filter.words} placeholder="Search questions and answers" onInput={change("words")} />
      </label>
      <label>
        <span class="hidden">Status</span>
        <select value={filter.status} onChange={change("status")}>
          <option value="">any status</option>
          {STATUSES.map((status) => (
            <option key={status} value={status}>
              {statusWord(status)}
            </option>
          ))}
        </select>
      </label>
      <label>
        <span class="hidden">Model</span>
        <select value={filter.model} onChange={change("model")}>
          <option value="">any model</option>
          {named(models.value.map((each) => each.id), filter.model)}
        </select>
      </label>
      <details open={isOpen}>
        <summary>More filters</summary>
        <div class="fields">
          <label>
            Worker
            <select value={filter.worker} onChange={change("worker")}>
              <option value="">any</option>
              {named(ofKind("worker").map((each) => each.id), filter.worker)}
            </select>
          </label>
          {administers() ? (
            <label>
              Team
              <select value={filter.team} onChange={change("team")}>
                <option value="">any</option>
                {teams.value.map((team) => (
                  <option key={team.id} value={team.id}>
                    {team.name}
                  </option>
                ))}
              </select>
            </label>
          ) : null}
          <label>
            Conversation
            <input value={filter.conversation} placeholder="cv_…" onInput={props.change("conversation")} />
          </label>
          <label>
            Minimum cost ($)
            <input type="number" min="0" step="any" value={filter.min_cost_usd} onInput={change("min_cost_usd")} />
          </label>
          <label class="check">
            <input type="checkbox" checked={filter.rated !== ""} onChange={(event) => props.onRated(event.currentTarget.checked)} />
            Only rated runs
          </label>
        </div>
      </details>
      {props.onClear ? (
        <button type="button" class="plain" onClick={props.onClear}>
          Clear
        </button>
      ) : null}
    </div>
  );
}

/** Options for names. The chosen one is among them even if the settings no longer have it. */
function named(names: string[], chosen: string) {
  return [...new Set(chosen ? [...names, chosen] : names)].map((name) => (
    <option key={name} value={name}>
      {name}
    </option>
  ));
}

function columns(now_s: number): Column<ApiRun>[] {
  return [
    { name: "Question", main: true, cell: (run) => <Question run={run} /> },
    { name: "Status", cell: (run) => <span class={`chip ${run.status}`}>{run.plan_only ? "plan only" : statusWord(run.status, run.finish_reason)}</span> },
    { name: "Team", cell: (run) => teamName(run.account?.team_id) || <span class="soft">–</span> },
    { name: "Key", cell: (run) => keyName(run.account?.key_id) || <span class="soft">–</span> },
    { name: "Cost", numeric: true, usd: (run) => run.cost_usd, cell: (run, most) => (OVER.has(run.status) ? dollars(run.cost_usd, most) : "") },
    { name: "Tokens", numeric: true, cell: (run) => (run.usage.total_tokens ? compact(run.usage.total_tokens) : "") },
    { name: "Duration", numeric: true, cell: (run) => seconds(OVER.has(run.status) ? run.wall_s : Math.max(run.wall_s, now_s - run.created)) },
    { name: "Started", numeric: true, cell: (run) => <time title={when(run.created)}>{ago(run.created, now_s)}</time> },
  ];
}

/** Question of a run, as the link to it, and what answered it. */
function Question(props: { run: ApiRun }) {
  const { run } = props;
  const text = questionOf(run);
  const workers = [...new Set(run.steps.map((step) => step.served_by ?? step.worker))];
  const steps = run.steps.length > 1 ? `${plural(run.steps.length, "step")} by ` : "";
  return (
    <>
      <a class="question-link" href={`#/runs/${run.id}`}>
        {text ? brief(text, 140) : run.id.slice(0, 15)}
      </a>
      <span class="small soft">
        {run.model}
        {workers.length && !(workers.length === 1 && workers[0] === run.model) ? ` · ${steps}${workers.join(", ")}` : ""}
        {!text && OVER.has(run.status) ? " · question not stored" : ""}
        {run.cached_share ? ` · ${percent(run.cached_share)} cached` : ""}
        {run.cached_from ? " · from the cache" : ""}
      </span>
    </>
  );
}
