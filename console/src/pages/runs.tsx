/** List of the newest runs. Its first page is live. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { administers, may } from "../data/access";
import { get, words } from "../data/api";
import { ago, brief, compact, dollars, percent, plural, seconds, when } from "../data/format";
import { loadModels, type ModelInfo, models, ofKind } from "../data/models";
import { keyName, loadNames, teamName, teams } from "../data/names";
import type { ApiRun } from "../data/record";
import { parameters, route, setParameters } from "../data/route";
import { OVER, questionOf } from "../data/run";
import { statusWord } from "../data/status";
import { Alert, type Column, Empty, Locked, PageHead, Select, Table, useEvery } from "../parts/ui";

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
  if (may("read")) return <RunList />;
  return (
    <Locked title="Runs" scope="read" cannot="read runs">
      Ask an administrator for a key with this scope.
    </Locked>
  );
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
    const query = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries(filter.value)) if (value && !(name === "words" && value.length < FEWEST_CHARS)) query.set(name, value);
    if (after) query.set("after", after);
    return get<Page>(`/v1/workflows?${query.toString()}`);
  };
  /** Read the first page again. Keep the older pages, unless there is a gap between them and the new runs. */
  const refresh = async (isNew: boolean) => {
    const turn = ++newest.current;
    try {
      const page = await read("");
      if (turn !== newest.current) return; // the filter has changed since
      const ids = new Set(page.data.map((run) => run.id));
      const older = isNew ? [] : (runs.value ?? []);
      const connects = older.some((run) => ids.has(run.id));
      const rest = connects ? older.slice(older.findLastIndex((run) => ids.has(run.id)) + 1) : [];
      runs.value = [...page.data, ...rest];
      if (!rest.length) more.value = page.next_after ?? "";
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
  const change = (name: keyof Filter, value: string) => (filter.value = { ...filter.value, [name]: value });
  const shown = runs.value ?? [];
  return (
    <section>
      <PageHead title="Runs" lead="Every request is a run: its plan, its steps, its cost.">
        <button type="button" class={live.value ? "live on" : "live"} aria-pressed={live.value} onClick={() => (live.value = !live.value)}>
          <span class="dot" aria-hidden="true" /> Live
        </button>
      </PageHead>
      <Filters filter={filter.value} change={change} onClear={isFiltered ? () => (filter.value = { ...NO_FILTER }) : null} />
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
      Runs appear here as soon as a client sends a request to this server.
    </Empty>
  );
}

function Filters(props: { filter: Filter; change: (name: keyof Filter, value: string) => void; onClear: (() => void) | null }) {
  const { filter, change } = props;
  const isOpen = useRef(Boolean(filter.worker || filter.team || filter.conversation || filter.min_cost_usd || filter.rated)).current;
  return (
    <div class="filters" role="search" aria-label="Filter runs">
      <label class="grow">
        <span class="hidden">Text in question or answer</span>
        <input type="search" value={filter.words} placeholder="Search questions and answers" onInput={(event) => change("words", event.currentTarget.value)} />
      </label>
      <Select label="Status" isLabelHidden value={filter.status} options={[["", "any status"], ...STATUSES.map((each) => [each, statusWord(each)] as const)]} onChange={(value) => change("status", value)} />
      <Select label="Model" isLabelHidden value={filter.model} options={[["", "any model"], ...named(models.value, filter.model)]} onChange={(value) => change("model", value)} />
      <details open={isOpen}>
        <summary>More filters</summary>
        <div class="fields">
          <Select label="Worker" value={filter.worker} options={[["", "any"], ...named(ofKind("worker"), filter.worker)]} onChange={(value) => change("worker", value)} />
          {administers() ? <Select label="Team" value={filter.team} options={[["", "any"], ...teams.value.map((team) => [team.id, team.name] as const)]} onChange={(value) => change("team", value)} /> : null}
          <label>
            Conversation
            <input value={filter.conversation} placeholder="cv_…" onInput={(event) => change("conversation", event.currentTarget.value)} />
          </label>
          <label>
            Minimum cost ($)
            <input type="number" min="0" step="any" value={filter.min_cost_usd} onInput={(event) => change("min_cost_usd", event.currentTarget.value)} />
          </label>
          <label class="check">
            <input type="checkbox" checked={filter.rated !== ""} onChange={(event) => change("rated", event.currentTarget.checked ? "true" : "")} />
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
function named(of: readonly ModelInfo[], chosen: string): (readonly [string, string])[] {
  const names = of.map((each) => each.id);
  return [...new Set(chosen ? [...names, chosen] : names)].map((name) => [name, name] as const);
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
