/** Spending per day by model, worker, team or key, what caches saved, and an estimate for one model alone. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { may, myKey } from "../data/access";
import { get, words } from "../data/api";
import { hue } from "../data/colours";
import { type ApiCosts, cachedShare, type CostField, type CostRow, costRows, type CostSums, dayStart, runningSums, sumCosts } from "../data/costs";
import { compact, count, dollars, percent, plural, sum } from "../data/format";
import { loadNames, titleOf } from "../data/names";
import { byGroup, type Figure, OTHERS, overTime, seriesOf, type Span } from "../data/series";
import { Dot, Plot, type PlotSeries, Sparkline } from "../parts/plot";
import { Alert, type Column, Empty, Locked, PageHead, Segments, Table, useEvery } from "../parts/ui";

const DAY_S = 86_400;
const EVERY_MS = 30_000;
const MOST_SERIES = 6;
type Days = "7" | "30" | "90";
const RANGES: readonly (readonly [Days, string])[] = [
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
];
const GROUPS: readonly (readonly [CostField, string])[] = [
  ["model", "Model"],
  ["worker", "Worker"],
  ["team", "Team"],
  ["key", "Key"],
];
type View = "cost" | "cached" | "saved" | "baseline";

const FIGURES: Record<View, Figure<CostRow>> = {
  cost: { addsUp: true, value: (rows) => sumCosts(rows).cost_usd },
  cached: { addsUp: false, value: (rows) => cachedShare(sumCosts(rows)) },
  saved: { addsUp: true, value: (rows) => sumCosts(rows).saved_usd },
  baseline: { addsUp: true, value: (rows) => sumCosts(rows).baseline_usd },
};
const TITLES: Record<Exclude<View, "baseline">, string> = { cost: "Cost per day", cached: "Share of input tokens read from caches", saved: "Saved by caches per day" };

export function Costs() {
  return may("read") ? <Report /> : <Locked title="Costs" scope="read" cannot="read costs" />;
}

function Report() {
  const days = useSignal<Days>("30");
  const by = useSignal<CostField>("model");
  const view = useSignal<View>("cost");
  const fault = useSignal("");
  /** Newest report, with the field by which it is grouped. */
  const loaded = useSignal<{ report: ApiCosts; by: CostField } | null>(null);
  const load = async () => {
    const query = { days: days.value, by: by.value };
    const from = new Date(Date.now() - 1000 * DAY_S * (Number(query.days) - 1)).toISOString().slice(0, 10);
    try {
      const report = await get<ApiCosts>(`/v1/costs?from=${from}&by=day,${query.by}`);
      if (query.days !== days.value || query.by !== by.value) return; // the user has chosen others since
      loaded.value = { report, by: query.by };
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
  };
  useEffect(() => void load(), [days.value, by.value]);
  useEffect(() => void loadNames().catch(() => undefined), []);
  useEvery(EVERY_MS, true, load);
  const isWhole = loaded.value !== null && loaded.value.report.data.length > 0;
  return (
    <section>
      <PageHead title="Costs" lead="Costs of requests, and savings by caches. Days are in UTC.">
        <Segments label="Time" options={RANGES} value={days.value} onChange={(value) => (days.value = value)} />
      </PageHead>
      <Alert text={fault.value} />
      {loaded.value && isWhole ? <Pictures {...loaded.value} view={view.value} onView={(value) => (view.value = value)} onBy={(value) => (by.value = value)} /> : null}
      {loaded.value && !isWhole ? (
        <Empty icon="costs" title="No costs in this time." action={may("run") ? <a class="button go" href="#/ask">Ask a question</a> : null}>
          The figures appear with the first request that ends.
        </Empty>
      ) : null}
    </section>
  );
}

/** Figures of the whole time, a plot of one of them, and a table of all by group. */
function Pictures(props: { report: ApiCosts; by: CostField; view: View; onView: (view: View) => void; onBy: (by: CostField) => void }) {
  const { report, by, view } = props;
  const rows = costRows(report, by);
  const span: Span = { from_s: dayStart(report.from), to_s: dayStart(report.to) + DAY_S, step_s: DAY_S };
  const total = sumCosts(rows);
  const n_days = (span.to_s - span.from_s) / DAY_S;
  const cards: { view: View; name: string; value: string; note: string }[] = [
    { view: "cost", name: "Cost", value: sum(total.cost_usd), note: `${sum(total.cost_usd / n_days)} per day` },
    { view: "cached", name: "Cached", value: percent(cachedShare(total)), note: `of ${compact(total.input)} input tokens` },
    { view: "saved", name: "Saved by caches", value: sum(total.saved_usd), note: total.saved_usd ? `${percent(total.saved_usd / (total.cost_usd + total.saved_usd))} of the cost without them` : "" },
  ];
  if (report.baseline !== null) cards.push({ view: "baseline", name: `Saved against ${report.baseline}`, value: sum(total.baseline_usd - total.cost_usd), note: `estimate: ${sum(total.baseline_usd)} with it alone${total.unknown ? ", without answers of unknown cost" : ""}` });
  const groups = [...byGroup(rows)].map(([name, own]) => ({ name, sums: sumCosts(own) })).sort((a, b) => b.sums.cost_usd - a.sums.cost_usd || b.sums.runs - a.sums.runs);
  return (
    <>
      <div class="figures few">
        {cards.map((card) => (
          <button type="button" key={card.view} class="figure" aria-pressed={view === card.view} onClick={() => props.onView(card.view)}>
            <span class="figure-name">{card.name}</span>
            <span class="figure-value">{card.value}</span>
            <span class="figure-note">{card.note}</span>
            <Sparkline isBars={card.view !== "cached"} values={overTime(rows, FIGURES[card.view], span)} />
          </button>
        ))}
      </div>
      <div class="card">
        <div class="card-head">
          <h2>{view === "baseline" ? `Cost so far, and with ${report.baseline} alone (estimate)` : TITLES[view]}</h2>
          <Segments label="Group by" options={myKey() ? GROUPS : GROUPS.filter(([field]) => field !== "team" && field !== "key")} value={by} onChange={props.onBy} />
        </div>
        <Plot
          label="Costs over time. The table below has the figures."
          series={view === "baseline" ? comparison(rows, span, report.baseline ?? "") : seriesOf(rows, FIGURES[view], span, MOST_SERIES).map((each) => ({ ...each, title: titleOf(by, each.name), hue: each.name === OTHERS ? 220 : hue(each.name) }))}
          span={span}
          isStacked={view !== "baseline" && FIGURES[view].addsUp}
          format={view === "cached" ? percent : sum}
          time={(unix_s) => new Date(1000 * unix_s).toLocaleDateString(undefined, { day: "numeric", month: "short", timeZone: "UTC" })}
        />
        <Table label="Costs by group" columns={columns(by, report.baseline)} rows={groups} id={(group) => group.name} />
        <Notes report={report} total={total} />
      </div>
    </>
  );
}

/** Cost since the first day, and its estimate for the baseline. */
function comparison(rows: CostRow[], span: Span, baseline: string): PlotSeries[] {
  return [
    { name: "cost", title: "cost", hue: null, values: runningSums(overTime(rows, FIGURES.cost, span)) },
    { name: "baseline", title: `${baseline} alone, estimated`, hue: 30, values: runningSums(overTime(rows, FIGURES.baseline, span)) },
  ];
}

interface Group {
  name: string;
  sums: CostSums;
}

function columns(by: CostField, baseline: string | null): Column<Group>[] {
  const compared: Column<Group> = { name: `With ${baseline} (est.)`, numeric: true, usd: ({ sums }) => sums.baseline_usd, cell: ({ sums }, most) => sum(sums.baseline_usd, most) };
  return [
    {
      name: GROUPS.find(([field]) => field === by)![1],
      main: true,
      cell: (group) => (
        <>
          <Dot hue={hue(group.name)} /> {titleOf(by, group.name)}
        </>
      ),
    },
    { name: "Requests", numeric: true, cell: ({ sums }) => count(sums.runs) },
    { name: "Tokens in", numeric: true, cell: ({ sums }) => compact(sums.input) },
    { name: "Cached", numeric: true, cell: ({ sums }) => percent(cachedShare(sums)) },
    { name: "Tokens out", numeric: true, cell: ({ sums }) => compact(sums.output) },
    { name: "Cost", numeric: true, usd: ({ sums }) => sums.cost_usd, cell: ({ sums }, most) => sum(sums.cost_usd, most) },
    { name: "Saved", numeric: true, usd: ({ sums }) => sums.saved_usd, cell: ({ sums }, most) => sum(sums.saved_usd, most) },
    ...(baseline === null ? [] : [compared]),
  ];
}

/** List of the costs that the figures exclude, and the total of the ledger. */
function Notes(props: { report: ApiCosts; total: CostSums }) {
  const { report, total } = props;
  const difference = Number(report.ledger?.difference_usd ?? 0);
  return (
    <ul class="notes small soft">
      {total.unknown ? <li>{plural(total.unknown, "call")} of unknown cost {total.unknown === 1 ? "is" : "are"} not included{report.baseline === null ? "" : ", neither in the cost nor in the estimate"}.</li> : null}
      {report.baseline === null ? <li>To estimate what one model alone would have cost, name it as baseline in the settings.</li> : <li>The estimate prices the tokens of the answers at the rates of {report.baseline}, without plans and earlier steps.</li>}
      {report.ledger ? <li>The ledger has {sum(Number(report.ledger.cost_usd))} for these requests{difference ? `, a difference of ${dollars(difference)} by corrections, or calls whose end no run has recorded` : ""}.</li> : null}
    </ul>
  );
}
