/** Timeline of plans: for each step, when it waited, when it was called, and when it wrote. */
import { hue } from "../data/colours";
import { seconds } from "../data/format";
import { type Plan, type Step, criticalPath } from "../data/run";
import { statusWord } from "../data/status";
import { type Room, type Wait, roomOf, took } from "../data/waits";

/** Timeline of a run's plans and steps, and of its waits for the client's tools. */
export function Timeline(props: {
  plans: Plan[];
  waits: Wait[];
  now_s: number;
  /** End of the axis in seconds. A replay is at some time before it. */
  whole_s: number;
  selected: Step | null;
  onSelect: (step: Step) => void;
}) {
  const unix_s = Date.now() / 1000;
  const room = roomOf(props.whole_s, props.waits, unix_s);
  const share = (place: number) => `${(100 * Math.min(Math.max(place, 0), room.whole)) / room.whole}%`;
  return (
    <div class="card timeline" role="group" aria-label="Timeline of the run">
      <h2>Timeline</h2>
      <div class="axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <span key={part} style={{ left: `${100 * part}%` }}>
            {seconds(room.timeAt(part * room.whole)) || "0"}
          </span>
        ))}
      </div>
      <p class="legend small" aria-hidden="true">
        <span>
          <span class="bar waits" /> waiting
        </span>
        <span>
          <span class="bar silent" /> called, no output yet
        </span>
        <span>
          <span class="bar talks" /> writing
        </span>
        {props.waits.length ? (
          <span>
            <span class="bar tools" /> client runs its tools
          </span>
        ) : null}
        <span>
          <b>bold</b>: critical path
        </span>
      </p>
      {props.waits.map((wait, index) => (
        <p key={index} class="small note">
          At {seconds(wait.at_s)}: {wait.waited_s === null ? "waiting for the client's tools, for" : "waited for the client's tools for"} {seconds(took(wait, unix_s)) || "0 s"}{wait.waited_s === null ? " so far" : ""}.
        </p>
      ))}
      {props.plans.map((plan) => (
        <PlanBars key={plan.plan} {...props} plan={plan} room={room} share={share} />
      ))}
    </div>
  );
}

function PlanBars(props: {
  plan: Plan;
  now_s: number;
  room: Room;
  share: (place: number) => string;
  selected: Step | null;
  onSelect: (step: Step) => void;
}) {
  const { plan, share, room } = props;
  const critical = criticalPath(plan);
  const ended = plan.ended_s ?? props.now_s;
  const began = plan.started_s ?? 0;
  return (
    <>
      {plan.worker ? (
        <div class="row">
          <span class="row-name">plan by {plan.worker}</span>
          <span class="row-bars">
            <Bar kind="planning" from={share(room.before(began))} to={share(room.before(ended))} hue={hue(plan.worker)} title={`wrote the plan for ${seconds(ended - began)}`} />
          </span>
        </div>
      ) : null}
      {plan.steps.map((step) => (
        <button
          type="button"
          class={`row${critical.has(step.step) && plan.steps.length > 1 ? " critical" : ""}`}
          key={step.step}
          aria-pressed={props.selected?.plan === step.plan && props.selected.step === step.step}
          onClick={() => props.onSelect(step)}
        >
          <span class="row-name">
            {step.step + 1} {step.worker}
          </span>
          <span class="row-bars" aria-label={described(step, props.now_s)} role="img">
            <Bars step={step} now_s={props.now_s} room={room} share={share} />
          </span>
        </button>
      ))}
    </>
  );
}

function Bars(props: { step: Step; now_s: number; room: Room; share: (place: number) => string }) {
  const { step, room, now_s } = props;
  const share = (s: number) => props.share(room.before(s));
  const colour = hue(step.worker);
  const planned = step.planned_s ?? 0;
  const started = step.started_s ?? (step.ended_s ?? now_s);
  const spoke = step.first_token_s ?? (step.ended_s ?? now_s);
  const ended = step.ended_s ?? now_s;
  return (
    <>
      <Bar kind="waits" from={share(planned)} to={share(started)} hue={colour} title={`waited ${seconds(started - planned)}`} />
      {step.started_s === null ? null : (
        <>
          <Bar kind="silent" from={share(started)} to={share(spoke)} hue={colour} title={`first token after ${seconds(spoke - started)}`} />
          <Bar kind="talks" from={share(spoke)} to={share(ended)} hue={colour} title={`wrote for ${seconds(ended - spoke)}`} />
        </>
      )}
      {step.turns.map((turn, index) =>
        turn.called_s === null ? null : (
          <Bar
            key={index}
            kind="tools"
            from={share(turn.called_s)}
            to={props.share(room.after(turn.answered_s ?? now_s))}
            hue={colour}
            title={`waited for ${turn.tool_calls.map((call) => call.name).join(", ")}`}
          />
        ),
      )}
    </>
  );
}

function Bar(props: { kind: string; from: string; to: string; hue: number; title: string }) {
  const style = { left: props.from, width: `calc(${props.to} - ${props.from})`, "--hue": `${props.hue}` };
  return <span class={`bar ${props.kind}`} style={style} title={props.title} />;
}

function described(step: Step, now_s: number): string {
  const ended = step.ended_s ?? now_s;
  const waited = (step.started_s ?? ended) - (step.planned_s ?? 0);
  const worked = step.started_s === null ? "" : `, then ran for ${seconds(ended - step.started_s)}`;
  const tools = step.turns.flatMap((turn) => turn.tool_calls.map((call) => call.name));
  const called = tools.length ? `, called ${tools.join(", ")}` : "";
  return `${statusWord(step.status, step.finish_reason)}: waited ${seconds(waited)}${worked}${called}`;
}
