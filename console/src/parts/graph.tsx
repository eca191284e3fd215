/** Graph of a plan: a button for each step, and a line for each output that a step reads. */
import { hue } from "../data/colours";
import { brief, dollars, percent, seconds } from "../data/format";
import { places } from "../data/layout";
import { type Plan, type Step, criticalPath } from "../data/run";
import { statusWord } from "../data/status";
import { useWidth } from "./ui";

/** Size of a node in pixels. Nodes are narrower if the plan then fits its place. */
const WIDTH = 220;
const LEAST_WIDTH = 124;
/** Width below which the status is on a separate line. */
const NARROW = 180;
const HEIGHT = 96;
const NARROW_HEIGHT = 116;
const GAP_X = 64;
const LEAST_GAP_X = 32;
const GAP_Y = 20;
/** Space at both sides together, for the outline of a node that has the focus. */
const PADDING = 4;

export function Graph(props: { plan: Plan; selected: Step | null; onSelect: (step: Step) => void }) {
  const { plan } = props;
  const placed = places(plan.steps.map((step) => step.access));
  const critical = criticalPath(plan);
  const n = Math.max(1, ...placed.map((place) => place.column + 1));
  const { ref, width: room } = useWidth(n * (WIDTH + GAP_X) - GAP_X + PADDING);
  const gap = n * WIDTH + (n - 1) * GAP_X + PADDING <= room ? GAP_X : LEAST_GAP_X;
  const node = Math.max(LEAST_WIDTH, Math.min(WIDTH, Math.floor((room - PADDING - (n - 1) * gap) / n)));
  const width = n * (node + gap) - gap;
  const tall = node < NARROW ? NARROW_HEIGHT : HEIGHT;
  const height = Math.max(0, ...placed.map((place) => place.row + 1)) * (tall + GAP_Y) - GAP_Y;
  const x = (step: number) => (placed[step]?.column ?? 0) * (node + gap);
  const y = (step: number) => (placed[step]?.row ?? 0) * (tall + GAP_Y);
  return (
    <div class="graph" ref={ref} role="group" aria-label={`Plan ${plan.plan + 1} as a graph`}>
      <div class="graph-area" style={{ width: `${width}px`, height: `${Math.max(height, tall)}px` }}>
        <svg class="edges" width={width} height={Math.max(height, 1)} aria-hidden="true">
          {plan.steps.flatMap((step) =>
            step.access.map((read) => {
              const [x1, y1] = [x(read) + node, y(read) + tall / 2];
              const [x2, y2] = [x(step.step), y(step.step) + tall / 2];
              const bend = (x2 - x1) / 2;
              const flows = plan.steps[read]?.status === "done" && step.status === "running";
              const on = critical.has(read) && critical.has(step.step) ? " critical" : "";
              return (
                <path
                  key={`${read}-${step.step}`}
                  class={`edge${flows ? " flows" : ""}${on}`}
                  d={`M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`}
                />
              );
            }),
          )}
        </svg>
        {plan.steps.map((step) => (
          <Node
            key={step.step}
            step={step}
            selected={props.selected?.plan === step.plan && props.selected.step === step.step}
            critical={critical.has(step.step) && plan.steps.length > 1}
            narrow={node < NARROW}
            style={{ left: `${x(step.step)}px`, top: `${y(step.step)}px`, width: `${node}px`, height: `${tall}px` }}
            onSelect={() => props.onSelect(step)}
          />
        ))}
      </div>
    </div>
  );
}

function Node(props: {
  step: Step;
  selected: boolean;
  critical: boolean;
  narrow: boolean;
  style: Record<string, string>;
  onSelect: () => void;
}) {
  const { step } = props;
  const took = step.ended_s !== null && step.started_s !== null ? seconds(step.ended_s - step.started_s) : "";
  const cached = step.cached_share ? `${percent(step.cached_share)} cached` : "";
  const tries = step.attempts.length ? `${step.attempts.length + 1} attempts` : "";
  return (
    <button
      type="button"
      data-step={`${step.plan}.${step.step}`}
      class={`node ${step.status}${props.critical ? " critical" : ""}${props.narrow ? " narrow" : ""}`}
      style={{ ...props.style, "--hue": `${hue(step.worker)}` }}
      aria-pressed={props.selected}
      onClick={props.onSelect}
    >
      <span class="node-head">
        <span class="node-number">{step.step + 1}</span>
        <strong>{step.served_by && step.served_by !== step.worker ? `${step.worker} → ${step.served_by}` : step.worker}</strong>
        <span class="chip">{statusWord(step.status, step.finish_reason)}</span>
      </span>
      <span class="node-task">{brief(step.subtask || "Answer the question", 90)}</span>
      <Words step={step} />
      <span class="node-foot">{[took, step.cost_usd === null ? "" : dollars(step.cost_usd), cached, tries, toolsOf(step)].filter(Boolean).join(" · ")}</span>
    </button>
  );
}

/** List the tools that the step has called, in the order of their first call. */
function toolsOf(step: Step): string {
  const names = [...new Set(step.turns.flatMap((turn) => turn.tool_calls.map((call) => call.name)))];
  return names.length ? `calls ${names.join(", ")}` : "";
}

/** Newest words of the step. A separate component, so that a new word redraws only this text. */
function Words(props: { step: Step }) {
  const text = props.step.words.value;
  const over = props.step.ended_s !== null;
  return <span class="node-words">{over || text.length < 32 ? brief(text, 60) : `…${brief(text.slice(-30), 30)}`}</span>;
}
