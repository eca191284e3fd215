/** Plots over time, drawn as SVG: stacked bars for amounts that add up, and lines for all others. */
import { useSignal } from "@preact/signals";
import { largest } from "../data/format";
import { type Series, type Span, ticks } from "../data/series";
import { useWidth } from "./ui";

const HEIGHT = 240;
const ABOVE = 12;
const BELOW = 26;
const RIGHT = 8;
const CHAR = 7;

export interface PlotSeries extends Series {
  /** Text of the legend. */
  title: string;
  /** Hue of its colour, or null for the page's accent. */
  hue: number | null;
}

/** Plot of series over time.
 *
 * @param label what a screen reader says of it. The figures are in a table.
 */
export function Plot(props: { label: string; series: PlotSeries[]; span: Span; isStacked: boolean; format: (value: number, most?: number) => string; time: (unix_s: number) => string }) {
  const { ref, width } = useWidth(760);
  const under = useSignal<number | null>(null);
  const n = Math.round((props.span.to_s - props.span.from_s) / props.span.step_s);
  const values = props.isStacked ? Array.from({ length: n }, (_, bar) => stack(props.series, bar)).flat() : props.series.flatMap((each) => each.values.map((value) => value ?? 0));
  const marks = ticks(Math.max(0, ...values), Math.min(0, ...values));
  const [least, most] = [marks[0]!, marks.at(-1)!];
  const format = (value: number) => props.format(value, largest([least, most]));
  const left = Math.max(...marks.map((mark) => format(mark).length)) * CHAR + 10;
  const slot = Math.max(1, width - left - RIGHT) / n;
  const x = (bar: number) => left + bar * slot;
  const y = (value: number) => ABOVE + ((most - value) / (most - least)) * (HEIGHT - ABOVE - BELOW);
  const move = (event: { clientX: number; currentTarget: Element }) => {
    const bar = Math.floor((event.clientX - event.currentTarget.getBoundingClientRect().left - left) / slot);
    under.value = bar >= 0 && bar < n ? bar : null;
  };
  const bar = under.value;
  return (
    <div class="plot-box" ref={ref}>
      <svg class="plot" width={width} height={HEIGHT} role="img" aria-label={props.label} onMouseMove={move} onMouseLeave={() => (under.value = null)}>
        {marks.map((mark) => (
          <g key={mark}>
            <line class="grid" x1={left} x2={width - RIGHT} y1={y(mark)} y2={y(mark)} />
            <text x={left - 8} y={y(mark) + 4} text-anchor="end">
              {format(mark)}
            </text>
          </g>
        ))}
        {timeMarks(n, width - left).filter((each) => x(each) + slot / 2 < width - 28).map((each) => {
          const text = props.time(props.span.from_s + each * props.span.step_s);
          return (
            <text key={each} x={Math.max(x(each) + slot / 2, (text.length * CHAR) / 2)} y={HEIGHT - 6} text-anchor="middle">
              {text}
            </text>
          );
        })}
        {bar === null ? null : <rect class="under" x={x(bar)} y={ABOVE} width={slot} height={HEIGHT - ABOVE - BELOW} />}
        {props.isStacked ? <Bars series={props.series} n={n} x={x} y={y} slot={slot} /> : props.series.map((each) => <Line key={each.name} series={each} x={(index) => x(index) + slot / 2} y={y} />)}
      </svg>
      {bar === null ? null : (
        <div class={`tip ${x(bar) > width / 2 ? "left" : ""}`} style={{ left: `${x(bar) + slot / 2}px` }} aria-hidden="true">
          <strong>{props.time(props.span.from_s + bar * props.span.step_s)}</strong>
          {props.series.map((each) => {
            const value = each.values[bar];
            return value === null || value === undefined || (props.isStacked && !value && props.series.length > 1) ? null : (
              <span key={each.name}>
                <Dot hue={each.hue} /> {each.title} <b>{format(value)}</b>
              </span>
            );
          })}
        </div>
      )}
      {props.series.length > 1 ? (
        <ul class="plot-legend">
          {props.series.map((each) => (
            <li key={each.name}>
              <Dot hue={each.hue} /> {each.title}
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

/** Return the ends of the stacks of negative and of positive values at a bar. */
function stack(series: readonly Series[], bar: number): [number, number] {
  const values = series.map((each) => each.values[bar] ?? 0);
  return [values.reduce((total, value) => total + Math.min(0, value), 0), values.reduce((total, value) => total + Math.max(0, value), 0)];
}

/** Dot in the colour of a series. */
export function Dot(props: { hue: number | null }) {
  return <span class={props.hue === null ? "dot accent" : "dot hued"} style={props.hue === null ? undefined : { "--hue": `${props.hue}` }} aria-hidden="true" />;
}

function Bars(props: { series: PlotSeries[]; n: number; x: (bar: number) => number; y: (value: number) => number; slot: number }) {
  const gap = props.slot > 4 ? Math.min(4, props.slot * 0.2) : 0;
  return (
    <>
      {Array.from({ length: props.n }, (_, bar) => {
        let [above, below] = [0, 0]; // ends of the stacks of positive and of negative values
        return props.series.map((each) => {
          const value = each.values[bar] ?? 0;
          if (!value) return null;
          const start = value > 0 ? above : below;
          if (value > 0) above += value;
          else below += value;
          const [top, bottom] = [props.y(Math.max(start, start + value)), props.y(Math.min(start, start + value))];
          return <rect key={`${bar} ${each.name}`} class={each.hue === null ? "bar-fill" : "bar-fill hued"} style={each.hue === null ? undefined : { "--hue": `${each.hue}` }} x={props.x(bar) + gap / 2} y={top} width={Math.max(1, props.slot - gap)} height={Math.max(1, bottom - top)} rx={props.slot > 8 ? 2 : 0} />;
        });
      })}
    </>
  );
}

/** Line through known values. Bars without a value leave it out, and a value alone is a dot. */
function Line(props: { series: PlotSeries; x: (bar: number) => number; y: (value: number) => number }) {
  const points = props.series.values.flatMap((value, bar) => (value === null ? [] : [[props.x(bar), props.y(value)] as const]));
  const style = props.series.hue === null ? undefined : { "--hue": `${props.series.hue}` };
  const kind = props.series.hue === null ? "" : " hued";
  return (
    <g style={style}>
      <polyline class={`line${kind}`} points={points.map(([x, y]) => `${x},${y}`).join(" ")} />
      {points.length > 60 ? null : points.map(([x, y]) => <circle key={x} class={`line-dot${kind}`} cx={x} cy={y} r="2.5" />)}
    </g>
  );
}

/** Small line without axes, for the cards of the figures. */
export function Sparkline(props: { values: (number | null)[]; isBars: boolean }) {
  const [width, height] = [120, 30];
  const most = Math.max(0, ...props.values.map((value) => value ?? 0)) || 1;
  const slot = width / props.values.length;
  const y = (value: number) => height - 1 - (value / most) * (height - 4);
  const points = props.values.flatMap((value, index) => (value === null ? [] : [`${(index + 0.5) * slot},${y(value)}`]));
  return (
    <svg class="sparkline" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {props.isBars
        ? props.values.map((value, index) => (value !== null && value > 0 ? <rect key={index} class="bar-fill" x={index * slot} y={y(value)} width={Math.max(0.6, slot * 0.75)} height={height - y(value)} /> : null))
        : points.length > 1 ? <polyline class="line" points={points.join(" ")} /> : null}
    </svg>
  );
}

/** Return the bars that get a time below them, so that the texts have room. */
function timeMarks(n: number, width: number): number[] {
  const most = Math.max(2, Math.floor(width / 96));
  const every = Math.max(1, Math.ceil(n / most));
  return Array.from({ length: Math.ceil(n / every) }, (_, index) => index * every);
}
