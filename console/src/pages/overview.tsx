/** Figures of this server over time: requests, cost, tokens, latency, errors and the cache, by worker, team, model or
 * key. They come from the records of the newest runs, a page at a time. */
import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { administers, may, myKey } from "../data/access";
import { get, words } from "../data/api";
import { hue } from "../data/colours";
import { compact, count, percent, plural, seconds, sum, when } from "../data/format";
import { loadNames, titleOf } from "../data/names";
import type { ApiRun } from "../data/record";
import { byGroup, OTHERS, seriesOf, type Span, spanOf } from "../data/series";
import { addsUp, type By, type Fact, factOf, figureOf, type Metric, rowsOf, type Totals, totalsOf, valueOf } from "../data/usage";
import { Dot, Plot, type PlotSeries, Sparkline } from "../parts/plot";
import { Alert, type Column, Empty, Locked, PageHead, Segments, Table, useEvery } from "../parts/ui";

const RANGES = { hour: [60, 60], day: [1800, 48], week: [10_800, 56], month: [86_400, 30] } as const;
type Range = keyof typeof RANGES;
const RANGE_NAMES: readonly (readonly [Range, string])[] = [
  ["hour", "1 hour"],
  ["day", "24 hours"],
  ["week", "7 days"],
  ["month", "30 days"],
];
/** Runs in one request, and at most without asking the user. */
const PAGE = 500;
const MOST = 5000;
const EVERY_MS = 10_000;
const MOST_SERIES = 6;

interface Page {
  data: ApiRun[];
  next_after: string | null;
}

interface MetricInfo {
  name: string;
  /** Figure of the card. */
  value: (totals: Totals) => string;
  /** Line below it. */
  note: (totals: Totals) => string;
  format: (value: number) => string;
}

const METRICS: Record<Metric, MetricInfo> = {
  requests: { name: "Requests", value: (t) => (t.n < 100_000 ? count(t.n) : compact(t.n)), note: (t) => `${plural(t.ended - t.failed, "answer")}`, format: compact },
  cost: { name: "Cost", value: (t) => sum(t.cost_usd), note: (t) => (t.n_unpriced ? `${count(t.n_unpriced)} of unknown cost` : t.n ? `${sum(t.cost_usd / t.n)} per request` : ""), format: sum },
  tokens: { name: "Tokens", value: (t) => compact(t.tokens), note: (t) => `${compact(t.input)} in, ${compact(Math.max(0, t.tokens - t.input))} out`, format: compact },
  latency: { name: "Latency", value: (t) => seconds(t.p50_s) || "–", note: (t) => (t.p95_s === null ? "median" : `median; p95 ${seconds(t.p95_s)}`), format: (value) => seconds(value) },
  errors: { name: "Errors", value: (t) => percent(t.ended ? t.failed / t.ended : null), note: (t) => `${count(t.failed)} of ${count(t.ended)} failed`, format: percent },
  cached: { name: "Cached", value: (t) => percent(t.input ? t.cached / t.input : null), note: () => "of input tokens", format: percent },
};
const NAMES = Object.keys(METRICS) as Metric[];

const GROUPS: readonly (readonly [By, string])[] = [
  ["all", "All"],
  ["worker", "Worker"],
  ["team", "Team"],
  ["model", "Model"],
  ["key", "Key"],
];

export function Overview() {
  if (may("read")) return <Figures />;
  return (
    <Locked title="Overview" scope="read" cannot="read runs">
      The figures of this page come from runs.
    </Locked>
  );
}

function Figures() {
  const chosen = useSignal<Range | null>(null);
  const metric = useSignal<Metric>("requests");
  const by = useSignal<By>("all");
  const { facts, isWhole, isLoading, isAll, fault, readMore } = useFacts(chosen.value ?? "day");
  // at first, the shortest time that has all runs of a new server, else a day
  const first = isAll && facts.length ? RANGE_NAMES.map(([range]) => range).find((range) => facts.every((fact) => fact.run.at_s >= spanNow(range).from_s)) : undefined;
  const range = chosen.value ?? first ?? "day";
  const span = spanNow(range);
  const inSpan = facts.filter((fact) => fact.run.at_s >= span.from_s);
  const totals = totalsOf(rowsOf(inSpan, "all"));
  const oldest = inSpan.reduce((least, fact) => Math.min(least, fact.run.at_s), Infinity);
  return (
    <section>
      <PageHead title="Overview" lead={administers() ? "All requests to this server." : "The requests that your key may see."}>
        <Segments label="Time" options={RANGE_NAMES} value={range} onChange={(value) => (chosen.value = value)} />
      </PageHead>
      <Alert text={fault} />
      <div class="figures">
        {NAMES.map((name) => (
          <button type="button" key={name} class="figure" aria-pressed={metric.value === name} onClick={() => (metric.value = name)}>
            <span class="figure-name">{METRICS[name].name}</span>
            <span class="figure-value">{METRICS[name].value(totals)}</span>
            <span class="figure-note">{METRICS[name].note(totals)}</span>
            <Sparkline isBars={addsUp(name)} values={seriesOf(rowsOf(inSpan, "all"), figureOf(name), span, 1)[0]?.values ?? []} />
          </button>
        ))}
      </div>
      {inSpan.length ? (
        <Grouped facts={inSpan} by={by.value} onBy={(value) => (by.value = value)} metric={metric.value} span={span} range={range} />
      ) : isLoading ? null : (
        <Empty icon="overview" title={facts.length ? "No requests in this time." : "No requests yet."} action={may("run") ? <a class="button go" href="#/ask">Ask a question</a> : null}>
          {facts.length ? "Choose a longer time." : "The figures appear with the first request."}
        </Empty>
      )}
      <p class="small soft" role="status">
        {isLoading ? `Reading runs: ${count(facts.length)} so far…` : isWhole || !inSpan.length ? "" : `These are the newest ${count(inSpan.length)} runs, since ${when(oldest)}. `}
        {!isLoading && !isWhole && inSpan.length ? (
          <button type="button" class="plain" onClick={readMore}>
            Read older runs
          </button>
        ) : null}
      </p>
    </section>
  );
}

/** Plot of one figure and table of all, by group. */
function Grouped(props: { facts: Fact[]; by: By; onBy: (by: By) => void; metric: Metric; span: Span; range: Range }) {
  const { by, metric, span } = props;
  const info = METRICS[metric];
  const rows = rowsOf(props.facts, by);
  const series: PlotSeries[] = seriesOf(rows, figureOf(metric), span, MOST_SERIES).map((each) => ({ ...each, title: titleOf(by, each.name), hue: by === "all" ? null : each.name === OTHERS ? 220 : hue(each.name) }));
  const groups = [...byGroup(rows)].map(([name, own]) => ({ name, totals: totalsOf(own) })).sort((a, b) => b.totals.n - a.totals.n);
  return (
    <div class="card">
      <div class="card-head">
        <h2>{by === "worker" && metric === "requests" ? "Calls" : info.name} over time</h2>
        <Segments label="Group by" options={myKey() ? GROUPS : GROUPS.filter(([by]) => by !== "team" && by !== "key")} value={by} onChange={props.onBy} />
      </div>
      <Plot label={`${info.name} over time. The table below has the figures.`} series={series} span={span} isStacked={addsUp(metric)} format={info.format} time={(unix_s) => timeOf(unix_s, props.range)} />
      <Table label="Figures by group" columns={columns(by)} rows={groups} id={(group) => group.name} />
      {by === "worker" ? <p class="small soft">A run calls several workers, so there are more calls than requests. Failed attempts count as calls.</p> : null}
    </div>
  );
}

interface Group {
  name: string;
  totals: Totals;
}

function columns(by: By): Column<Group>[] {
  const calls = by === "worker";
  return [
    {
      name: { all: "Group", worker: "Worker", team: "Team", model: "Model", key: "Key" }[by],
      main: true,
      cell: (group) => (
        <>
          {by === "all" ? null : <Dot hue={hue(group.name)} />} {titleOf(by, group.name)}
        </>
      ),
    },
    { name: calls ? "Calls" : "Requests", numeric: true, cell: ({ totals }) => count(totals.n) },
    { name: "Cost", numeric: true, usd: ({ totals }) => totals.cost_usd, cell: ({ totals }, most) => (totals.n_unpriced === totals.n ? "unknown" : sum(totals.cost_usd, most)) },
    { name: "Tokens", numeric: true, cell: ({ totals }) => compact(totals.tokens) },
    { name: "Median", numeric: true, cell: ({ totals }) => seconds(totals.p50_s) || "–" },
    { name: "p95", numeric: true, cell: ({ totals }) => seconds(totals.p95_s) || "–" },
    { name: "Errors", numeric: true, cell: ({ totals }) => <span class={totals.failed ? "fault" : ""}>{percent(valueOf("errors", totals))}</span> },
    { name: "Cached", numeric: true, cell: ({ totals }) => percent(valueOf("cached", totals)) },
  ];
}

function spanNow(range: Range): Span {
  const [step_s, n] = RANGES[range];
  const now = new Date();
  return spanOf(now.getTime() / 1000, step_s, n, -60 * now.getTimezoneOffset());
}

function timeOf(unix_s: number, range: Range): string {
  const date = new Date(1000 * unix_s);
  if (range === "hour" || range === "day") return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short", ...(range === "week" ? { hour: "2-digit" } : {}) });
}

/** Read the runs of a time, newest first, and then again and again those that are new. */
function useFacts(range: Range) {
  const facts = useSignal<Map<string, Fact>>(new Map());
  const isLoading = useSignal(true);
  const fault = useSignal("");
  /** Cursor of the next older page of runs, or "" if all runs have been read. */
  const next = useSignal<string | null>(null);
  const most = useSignal(MOST);
  const from_s = useRef(0);
  from_s.current = spanNow(range).from_s;
  const sorted = useComputed(() => [...facts.value.values()]);
  const oldest = () => facts.value.size ? Math.min(...sorted.value.map((fact) => fact.run.at_s)) : Infinity;
  const isWhole = () => next.value === "" || oldest() < from_s.current;

  const keep = (runs: ApiRun[]) => {
    const all = new Map(facts.value);
    for (const run of runs) if (!run.plan_only) all.set(run.id, factOf(run));
    facts.value = all;
  };
  const readPage = async (after: string, limit: number): Promise<Page> => {
    const page = await get<Page>(`/v1/workflows?limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
    keep(page.data);
    return page;
  };
  /** Read older runs until the time is covered, or there are too many. */
  const readOn = async (isOver: () => boolean) => {
    isLoading.value = true;
    try {
      while (!isOver() && !isWhole() && facts.value.size < most.value) {
        const page = await readPage(next.value ?? "", next.value === null ? 100 : PAGE);
        next.value = page.next_after ?? "";
      }
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
    if (!isOver()) isLoading.value = false;
  };
  useEffect(() => {
    let isOver = false;
    void readOn(() => isOver);
    return () => void (isOver = true);
  }, [range, most.value]);
  useEffect(() => void loadNames().catch(() => undefined), []);
  useEvery(EVERY_MS, true, async () => {
    if (isLoading.value) return;
    try {
      let after = "";
      // until a page has a run that is known, or there are very many new ones
      for (let n = 0; n < MOST / PAGE; n++) {
        const earlier = facts.value;
        const page = await readPage(after, n ? PAGE : 50);
        after = page.next_after ?? "";
        if (!after || page.data.some((run) => earlier.has(run.id))) break;
      }
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
  });
  return { facts: sorted.value, isWhole: isWhole(), isLoading: isLoading.value, isAll: next.value === "", fault: fault.value, readMore: () => (most.value += MOST) };
}
