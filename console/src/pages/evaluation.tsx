/** Comparison of an evaluation's report with live traffic: accuracy against cost. The report stays in the browser. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { may, whyNot } from "../data/access";
import { get, words } from "../data/api";
import { hue } from "../data/colours";
import { count, dollars, largest, seconds } from "../data/format";
import { placeLabels } from "../data/labels";
import { live, type Point, pointsOf, scale } from "../data/points";
import type { ApiRun } from "../data/record";
import { Icon } from "../parts/icons";
import { Dot } from "../parts/plot";
import { Alert, type Column, Empty, PageHead, Table, useWidth } from "../parts/ui";

const NEWEST = 500;
const MOST_RATED = 50;
const HEIGHT = 360;
const LEFT = 52;
const RIGHT = 16;
const ABOVE = 18;
const BELOW = 46;
const LABEL_HEIGHT = 17;
const CHAR = 7.4;
const MOST_CHARS = 26;
/** Height of the mark of a model without ratings, of which only the cost is known. */
const MARK = 26;

const COLUMNS: Column<Point>[] = [
  {
    name: "Strategy or model",
    main: true,
    cell: (point) => (
      <>
        <Dot hue={hue(point.name)} /> {point.name}
      </>
    ),
  },
  { name: "Source", cell: (point) => (point.where === "live" ? "live traffic" : "evaluation") },
  { name: "Answers", numeric: true, cell: (point) => count(point.n) },
  { name: "Right", numeric: true, cell: (point) => rightness(point) },
  { name: "Cost per run", numeric: true, usd: (point) => point.cost_usd, cell: (point, most) => dollars(point.cost_usd, most) },
  { name: "Time p50", numeric: true, cell: (point) => seconds(point.p50_s) },
  { name: "Time p95", numeric: true, cell: (point) => seconds(point.p95_s) },
];

export function Evaluation() {
  const report = useSignal<Point[]>([]);
  const title = useSignal("");
  const traffic = useSignal<Point[] | null>(null);
  const fault = useSignal("");
  const reads = may("read");
  const file = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (!reads) return void (traffic.value = []);
    loadTraffic()
      .then((points) => (traffic.value = points))
      .catch((error: unknown) => (fault.value = words(error)));
  }, []);
  const read = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      const content = JSON.parse(await chosen.text()) as { title?: unknown };
      report.value = pointsOf(content);
      title.value = String(content.title ?? chosen.name);
      fault.value = "";
    } catch {
      report.value = [];
      title.value = "";
      fault.value = "This file is not a report.json from `podium eval`.";
    }
  };
  const points = [...report.value, ...(traffic.value ?? [])];
  return (
    <section>
      <PageHead title="Compare" lead="The share of right answers against the cost of a run, of an evaluation and of this server’s live traffic.">
        <label class="button">
          <Icon name="file" /> Open a report
          <input ref={file} class="hidden" type="file" accept=".json,application/json" onChange={(event) => void read(event.currentTarget.files?.[0])} />
        </label>
      </PageHead>
      <Alert text={fault.value} />
      {points.length ? (
        <div class="card">
          <div class="card-head">
            <h2>{title.value || "Live traffic"}</h2>
            <p class="small soft">
              <span class="dot-full" aria-hidden="true" /> evaluation <span class="dot-ring" aria-hidden="true" /> live traffic <span class="dash" aria-hidden="true" /> cost only, not rated
            </p>
          </div>
          <Plot points={points} />
          <Table label="Measurements" columns={COLUMNS} rows={points} id={(point) => `${point.where} ${point.name}`} />
        </div>
      ) : traffic.value ? (
        <Empty
          icon="compare"
          title={reads ? "No runs yet, and no report is open." : "No report is open."}
          action={
            <button type="button" onClick={() => file.current?.click()}>
              Open a report
            </button>
          }
        >
          {reads ? "" : `${whyNot("read")} So live traffic is not shown. `}
          <code>podium eval</code> writes a report.json, which stays in your browser.
        </Empty>
      ) : null}
      <p class="small soft">
        Reports come from <code>podium eval</code> and stay in your browser. Live traffic is the newest {count(NEWEST)} runs that your key may see. Its ratings do not measure accuracy,
        because users choose which answers they rate.
      </p>
    </section>
  );
}

function rightness(point: Point): string {
  if (point.right === null) return point.where === "live" ? "not rated" : "unknown";
  const share = `${(100 * point.right).toFixed(1)} %`;
  if (point.low !== null && point.high !== null) return `${share} (${(100 * point.low).toFixed(0)} to ${(100 * point.high).toFixed(0)})`;
  return `mean rating ${share} (${count(point.nRated)})`;
}

/** Load the newest runs, and the ratings of the newest rated ones. */
async function loadTraffic(): Promise<Point[]> {
  const [newest, rated] = await Promise.all([
    get<{ data: ApiRun[] }>(`/v1/workflows?limit=${NEWEST}`),
    get<{ data: ApiRun[] }>(`/v1/workflows?rated=true&limit=${MOST_RATED}`),
  ]);
  const full = await Promise.all(rated.data.map((run) => get<ApiRun>(`/v1/workflows/${encodeURIComponent(run.id)}`)));
  return live(newest.data.filter((run) => !run.plan_only), full);
}

/** Plot with a dot for each strategy or model. Without an accuracy, it is a line at its cost. */
function Plot(props: { points: Point[] }) {
  const { ref, width } = useWidth(820);
  const shown = props.points.filter((each) => each.cost_usd !== null);
  const x = scale(shown.map((each) => each.cost_usd ?? 0));
  const inner = width - LEFT - RIGHT - 12;
  const at = (each: Point) => LEFT + 6 + x(each.cost_usd ?? 0) * inner;
  const y = (share: number) => ABOVE + (1 - share) * (HEIGHT - BELOW - ABOVE);
  const bottom = y(0);
  const names = shown.map((each) => (each.name.length > MOST_CHARS ? `${each.name.slice(0, MOST_CHARS - 1)}…` : each.name));
  const labels = placeLabels(
    shown.map((each, index) => ({ x: at(each), y: each.right === null ? bottom - MARK : y(each.right), width: names[index]!.length * CHAR })),
    LABEL_HEIGHT,
    { x: LEFT, y: 0, width: width - LEFT, height: bottom },
    shown.flatMap((each) => {
      if (each.right === null) return [{ x: at(each) - 1, y: bottom - MARK, width: 2, height: MARK }];
      return each.low === null || each.high === null ? [] : [{ x: at(each) - 1, y: y(each.high), width: 2, height: y(each.low) - y(each.high) }];
    }),
  );
  const costs = shown.map((each) => each.cost_usd ?? 0);
  return (
    <div class="plot-box" ref={ref}>
      <svg class="plot" width={width} height={HEIGHT} role="img" aria-label="Accuracy against the cost of a run. The table below has the figures.">
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(share)} y2={y(share)} />
            <text x={LEFT - 8} y={y(share) + 4} text-anchor="end">
              {100 * share} %
            </text>
          </g>
        ))}
        {costs.length ? (
          <>
            <text x={LEFT} y={bottom + 18}>
              {x(0) === 0 ? "$0" : dollars(Math.min(...costs), largest(costs))}
            </text>
            <text x={width - RIGHT} y={bottom + 18} text-anchor="end">
              {dollars(Math.max(...costs))}
            </text>
          </>
        ) : null}
        <text x={LEFT + inner / 2} y={HEIGHT - 6} text-anchor="middle">
          cost of a run{x(0) === 0 ? "" : ", logarithmic"}
        </text>
        {shown.map((each, index) => {
          const [px, py] = [at(each), each.right === null ? bottom - MARK : y(each.right)];
          const label = labels[index]!;
          const end = label.x + { start: 0, middle: 0.5, end: 1 }[label.anchor] * names[index]!.length * CHAR;
          return (
            <g key={`${each.where} ${each.name}`} class={each.where} style={{ "--hue": `${hue(each.name)}` }}>
              {label.far ? <line class="lead-line" x1={px} y1={py} x2={end + (label.anchor === "end" ? 2 : -2)} y2={label.y} /> : null}
              {each.right === null ? (
                <line class="cost" x1={px} x2={px} y1={py} y2={bottom} />
              ) : (
                <>
                  {each.low !== null && each.high !== null ? <line class="range" x1={px} x2={px} y1={y(each.low)} y2={y(each.high)} /> : null}
                  <circle cx={px} cy={py} r="5.5" />
                </>
              )}
              <text class="label" x={end} y={label.y + 4} text-anchor={label.anchor}>
                {names[index]}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}
