/** Comparison of an evaluation's report with live traffic: accuracy against cost. The report stays in the browser. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, words } from "./api";
import { Columns } from "./columns";
import { count, dollars, seconds } from "./format";
import { live, type Point, pointsOf, scale } from "./points";
import type { ApiRun } from "./record";
import { hue } from "./status";

const NEWEST = 500;
const MOST_RATED = 50;
const WIDTH = 640;
const HEIGHT = 320;
const LEFT = 56;
const BELOW = 40;

export function Evaluation() {
  const report = useSignal<Point[]>([]);
  const title = useSignal("");
  const traffic = useSignal<Point[]>([]);
  const fault = useSignal("");
  useEffect(() => {
    loadTraffic()
      .then((points) => (traffic.value = points))
      .catch((error: unknown) => (fault.value = words(error)));
  }, []);
  const read = async (file: File | undefined) => {
    if (!file) return;
    try {
      const found = JSON.parse(await file.text()) as { title?: unknown };
      report.value = pointsOf(found);
      title.value = String(found.title ?? file.name);
      fault.value = "";
    } catch {
      report.value = [];
      fault.value = "This file is not a report.json from `podium eval`.";
    }
  };
  const points = [...report.value, ...traffic.value];
  return (
    <section>
      <h1>Compare</h1>
      <p>Compare the results of an evaluation with this server's live traffic: the share of right answers against the cost of a run.</p>
      <label>
        Report from podium eval (report.json; the file stays in your browser)
        <input type="file" accept=".json,application/json" onChange={(event) => void read(event.currentTarget.files?.[0])} />
      </label>
      {fault.value ? (
        <p class="fault" role="alert">
          {fault.value}
        </p>
      ) : null}
      {title.value ? <h2>{title.value}</h2> : null}
      {points.length ? <Plot points={points} /> : null}
      <div class="scrolls" role="group" aria-label="Measurements" tabIndex={0}>
        <table>
          <Columns names={["Source", "Strategy or model", "Answers", "Right", "Cost per run", "Time p50", "Time p95"]} />
          <tbody>
            {points.map((each) => (
              <tr key={`${each.where} ${each.name}`}>
                <td>{each.where === "live" ? "live traffic" : "evaluation"}</td>
                <td>{each.name}</td>
                <td>{count(each.n)}</td>
                <td>{rightness(each)}</td>
                <td>{dollars(each.cost_usd)}</td>
                <td>{seconds(each.p50_s)}</td>
                <td>{seconds(each.p95_s)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {points.length ? null : <p role="status">No runs yet, and no report is open.</p>}
      <p class="small">
        Live traffic is the newest {count(NEWEST)} runs that your key may see. Ratings do not measure accuracy, because users choose which answers they rate.
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
  const shown = props.points.filter((each) => each.cost_usd !== null);
  const x = scale(shown.map((each) => each.cost_usd ?? 0));
  const at = (each: Point) => LEFT + x(each.cost_usd ?? 0) * (WIDTH - LEFT - 130);
  const y = (share: number) => 26 + (1 - share) * (HEIGHT - BELOW - 26);
  const bottom = y(0);
  return (
    <svg class="plot" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label="Accuracy against the cost of a run. The table below has the figures.">
      {[0, 0.25, 0.5, 0.75, 1].map((share) => (
        <g key={share}>
          <line class="grid" x1={LEFT} x2={WIDTH - 10} y1={y(share)} y2={y(share)} />
          <text x={LEFT - 8} y={y(share) + 4} text-anchor="end">
            {100 * share} %
          </text>
        </g>
      ))}
      <text x={LEFT} y={HEIGHT - 8}>
        Share of right answers against the cost of a run (logarithmic if costs differ widely)
      </text>
      {shown.map((each) => (
        <g key={`${each.where} ${each.name}`} class={each.where} style={{ "--hue": `${hue(each.name)}` }}>
          {each.right === null ? (
            <line class="cost" x1={at(each)} x2={at(each)} y1={y(1)} y2={bottom} />
          ) : (
            <>
              {each.low !== null && each.high !== null ? <line class="range" x1={at(each)} x2={at(each)} y1={y(each.low)} y2={y(each.high)} /> : null}
              <circle cx={at(each)} cy={y(each.right)} r="5" />
            </>
          )}
          <text x={at(each) + 8} y={(each.right === null ? bottom : y(each.right)) - 6}>
            {each.name}
          </text>
        </g>
      ))}
    </svg>
  );
}
