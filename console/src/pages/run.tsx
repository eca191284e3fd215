/** One run: live from its events, or from its record, which can be replayed at any speed. */
import { signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { may, owns, whyNot } from "../data/access";
import { get, post, words } from "../data/api";
import { useClock } from "../data/clock";
import { cacheWords, count, dollars, seconds, when } from "../data/format";
import { loadNames, keyName, teamName } from "../data/names";
import type { ApiRun } from "../data/record";
import { OVER, type Plan, type Run, type RunEvent, type Step, after, at, begun, fromRecord } from "../data/run";
import { follow } from "../data/sse";
import { cutWord, statusWord } from "../data/status";
import { Details, Fault } from "../parts/details";
import { Feedback } from "../parts/feedback";
import { Graph } from "../parts/graph";
import { Timeline } from "../parts/timeline";
import { Alert, Copy, Empty, useWidth } from "../parts/ui";

/** Width of a run, in pixels, from which the details of a step fit next to the plan. Otherwise they are below the plan. */
const ROOM_FOR_DETAILS = 940;

/** Watch a run. Return its newest state, the error if it cannot be watched, and whether it is connected. */
function useRun(id: string) {
  const run = useSignal<Run | null>(null);
  const fault = useSignal("");
  const connected = useSignal(true);
  useEffect(() => {
    const stop = new AbortController();
    watch(id, stop.signal, run, connected).catch((error: unknown) => {
      if (!stop.signal.aborted) fault.value = words(error);
    });
    return () => stop.abort();
  }, [id]);
  return { run, fault, connected };
}

async function watch(
  id: string,
  stop: AbortSignal,
  run: ReturnType<typeof signal<Run | null>>,
  connected: ReturnType<typeof signal<boolean>>,
): Promise<void> {
  const path = `/v1/workflows/${encodeURIComponent(id)}`;
  const record = await get<ApiRun>(path, stop);
  if (OVER.has(record.status)) {
    run.value = fromRecord(record);
    return;
  }
  const opened_s = record.now_s ?? record.wall_s; // what happened before counts as now
  let live: Run = { ...begun(record), now_s: opened_s };
  run.value = live;
  for await (const event of follow(`${path}/events`, stop, (state) => (connected.value = state))) {
    live = after(live, JSON.parse(event.data) as RunEvent);
    live = live.now_s < opened_s ? { ...live, now_s: opened_s } : live;
    run.value = live;
  }
  run.value = fromRecord(await get<ApiRun>(path, stop)); // its prompts, tokens and cents
}

/** A run.
 *
 * @param beside whether the run is next to the form that started it. It then links to its own page.
 */
export function RunView(props: { id: string; beside?: boolean }) {
  if (!may("read"))
    return (
      <Empty icon="lock" title="This key cannot read runs">
        {whyNot("read")}
      </Empty>
    );
  return <ReadableRun {...props} />;
}

function ReadableRun(props: { id: string; beside?: boolean }) {
  const { run, fault, connected } = useRun(props.id);
  const isOver = OVER.has(run.value?.status ?? "");
  const isWaiting = run.value?.status === "waiting"; // its clock stands still
  const ticking_s = useClock(run.value?.now_s ?? 0, run.value !== null && !isOver && connected.value);
  const now_s = isWaiting ? (run.value?.now_s ?? 0) : ticking_s;
  const selected = useSignal<{ plan: number; step: number } | null>(null);
  const root = useRef<HTMLDivElement>(null);
  const { ref: host, width } = useWidth(ROOM_FOR_DETAILS);
  const replay = useReplay(run.value);
  const live = run.value && !isOver ? { ...run.value, now_s } : run.value;
  const shown = replay.shown.value ?? live;
  const close = () => {
    const from = selected.value;
    selected.value = null;
    if (from) root.current?.querySelector<HTMLElement>(`[data-step="${from.plan}.${from.step}"]`)?.focus();
  };
  if (fault.value)
    return (
      <Alert text={fault.value}>
        <a href="#/runs">Show the newest runs</a>
      </Alert>
    );
  if (!shown) return <p role="status">Loading the run…</p>;
  const step = selected.value && shown.plans[selected.value.plan]?.steps[selected.value.step];
  const onSelect = (each: Step) => (selected.value = { plan: each.plan, step: each.step });
  const mayRate = may("run") && owns(shown.account);
  const details = step ? <Details key={`${step.plan}.${step.step}`} step={step} trace={shown.trace_id} onClose={close} /> : null;
  const isNarrow = width < ROOM_FOR_DETAILS;
  return (
    <div class="run-host" ref={host}>
      <div ref={root} class={step && !isNarrow ? "run with-details" : "run"} onKeyDown={(event) => event.key === "Escape" && close()}>
        <div class="run-main">
          <Head run={shown} connected={connected.value} beside={props.beside ?? false} isOver={isOver} />
          {isOver ? <ReplayBar replay={replay} whole={run.value!.now_s} /> : null}
          {shown.plans.map((plan) => (
            <PlanPart key={plan.plan} plan={plan} next={shown.plans[plan.plan + 1] ?? null} many={shown.plans.length > 1} selected={step ?? null} onSelect={onSelect} />
          ))}
          {isNarrow ? details : null}
          <Answer key={replay.shown.value ? "replayed" : "live"} run={shown} />
          {isOver && mayRate ? <Feedback id={shown.id} feedback={run.value!.feedback} keepsTexts={shown.has_content} /> : null}
          <Timeline plans={shown.plans} waits={shown.waits} now_s={shown.now_s} whole_s={isOver ? run.value!.now_s : shown.now_s} selected={step ?? null} onSelect={onSelect} />
        </div>
        {isNarrow ? null : details}
      </div>
    </div>
  );
}

function Head(props: { run: Run; connected: boolean; beside: boolean; isOver: boolean }) {
  const { run } = props;
  const Title = props.beside ? "h2" : "h1";
  useEffect(() => void loadNames().catch(() => undefined), []);
  return (
    <header class="run-head">
      <div class="run-title">
        <Title>
          {run.model} <span class={`chip ${run.status}`}>{statusWord(run.status, run.finish_reason)}</span>
        </Title>
        <Actions run={run} isOver={props.isOver} beside={props.beside} />
      </div>
      {run.question ? <pre class="question">{run.question}</pre> : null}
      <ul class="facts">
        <li>{seconds(run.now_s)}</li>
        {run.critical_path_s ? <li title="Time that the run would have taken if every step had started as soon as it could">critical path {seconds(run.critical_path_s)}</li> : null}
        {OVER.has(run.status) ? <li>{dollars(run.cost_usd)}</li> : null}
        {run.total_tokens ? <li>{count(run.total_tokens)} tokens</li> : null}
        {cacheWords(run) ? <li>{cacheWords(run)}</li> : null}
        <li>{when(run.created)}</li>
        {run.account?.team_id ? <li>team {teamName(run.account.team_id)}</li> : null}
        {run.account ? <li>key {keyName(run.account.key_id)}</li> : null}
        {run.conversation ? (
          <li>
            <a href={`#/runs?conversation=${run.conversation}`}>runs of this conversation</a>
          </li>
        ) : null}
        <li>
          <code>{run.id}</code> <Copy text={run.id} name="the run’s id" />
        </li>
      </ul>
      {props.connected ? null : <p role="status">The connection is lost. Reconnecting…</p>}
      <Fault fault={run.error} />
      {run.fallback ? <p class="note">One worker answered without a plan: {run.fallback}</p> : null}
      {run.has_content ? null : <p class="note">The texts of this run are not stored, only its numbers.</p>}
    </header>
  );
}

/** Actions on a run: cancel it, ask again, or open its page. */
function Actions(props: { run: Run; isOver: boolean; beside: boolean }) {
  const fault = useSignal("");
  const stop = () =>
    post(`/v1/workflows/${encodeURIComponent(props.run.id)}/cancel`, {}).catch((error: unknown) => (fault.value = words(error)));
  return (
    <p class="buttons">
      <Alert text={fault.value} />
      {props.beside ? (
        <a class="button" href={`#/runs/${props.run.id}`}>
          Open the run
        </a>
      ) : null}
      {!may("run") ? null : props.isOver ? (
        <a class="button" href={`#/again/${props.run.id}`}>
          Ask again with another plan
        </a>
      ) : (
        <button type="button" onClick={() => void stop()}>
          Cancel this run
        </button>
      )}
    </p>
  );
}

function PlanPart(props: { plan: Plan; next: Plan | null; many: boolean; selected: Step | null; onSelect: (step: Step) => void }) {
  const { plan } = props;
  const accepted = props.next?.source === "conversation" ? ", keeps the worker of this conversation" : ", accepts the previous answer";
  return (
    <div class="card plan" role="group" aria-label={`Plan ${plan.plan + 1}`}>
      {props.many ? (
        <h2>
          Plan {plan.plan + 1}: {plan.source}
          {plan.accepted ? accepted : ""}
        </h2>
      ) : null}
      {plan.rejected ? <p class="fault">Rejected: {plan.why}</p> : null}
      <Fault fault={plan.error} />
      {plan.source === "conversation" ? <p class="note">{conversationWords(plan, props.next)}</p> : null}
      {plan.steps.length ? <Graph plan={plan} selected={props.selected} onSelect={props.onSelect} /> : null}
      {plan.worker ? <PlanText plan={plan} /> : null}
    </div>
  );
}

/** Say why the worker that gave the last answer of a conversation answers again. */
function conversationWords(plan: Plan, next: Plan | null): string {
  if (next && plan.steps.every((step) => step.status !== "done")) return "The worker of this conversation was called early, and stopped because another plan runs.";
  return `The worker of this conversation answers${plan.plan === 0 ? " without a plan" : ""}. ${plan.why}`;
}

function PlanText(props: { plan: Plan }) {
  const text = props.plan.words.value;
  if (!text) return props.plan.ended_s === null ? <p role="status">{props.plan.worker} is writing the plan…</p> : null;
  return (
    <details open={props.plan.ended_s === null}>
      <summary>Plan as written by {props.plan.worker}</summary>
      <pre>{text}</pre>
    </details>
  );
}

function Answer(props: { run: Run }) {
  const text = props.run.answer.value;
  return (
    <div class="card answer">
      <h2>Answer</h2>
      <pre class="said">{text || (OVER.has(props.run.status) ? "No answer." : "No answer yet.")}</pre>
      {cutWord(props.run.status, props.run.finish_reason) ? <p class="note">The answer is incomplete: it was {cutWord(props.run.status, props.run.finish_reason)}.</p> : null}
    </div>
  );
}

interface Replay {
  shown: { value: Run | null };
  now_s: { value: number | null };
  speed: { value: number };
}

/** Replay a run from its record. */
function useReplay(run: Run | null): Replay {
  const now_s = useSignal<number | null>(null);
  const speed = useSignal(0);
  const whole = useRef(run);
  whole.current = run;
  const shown = useComputed(() => (now_s.value === null || !whole.current ? null : at(whole.current, now_s.value)));
  useEffect(() => {
    if (!speed.value || !run) return undefined;
    let frame = 0;
    let before = performance.now();
    const tick = (now: number) => {
      const next = (now_s.value ?? 0) + (speed.value * (now - before)) / 1000;
      before = now;
      now_s.value = next >= run.now_s ? null : next;
      if (now_s.value === null) speed.value = 0;
      else frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [speed.value, run]);
  return { shown, now_s, speed };
}

function ReplayBar(props: { replay: Replay; whole: number }) {
  const { replay } = props;
  const at_s = replay.now_s.value ?? props.whole;
  return (
    <div class="replay" role="group" aria-label="Replay">
      {[1, 4, 16].map((speed) => (
        <button
          type="button"
          key={speed}
          aria-pressed={replay.speed.value === speed}
          onClick={() => {
            if (replay.now_s.value === null) replay.now_s.value = 0;
            replay.speed.value = replay.speed.value === speed ? 0 : speed;
          }}
        >
          {replay.speed.value === speed ? "Pause" : `Replay ${speed}×`}
        </button>
      ))}
      <label class="speed">
        at{" "}
        <input
          type="number"
          min="0"
          step="any"
          aria-label="Replay speed"
          value={replay.speed.value || ""}
          onChange={(event) => {
            replay.speed.value = Math.max(0, event.currentTarget.valueAsNumber || 0);
            if (replay.speed.value) replay.now_s.value ??= 0;
          }}
        />
        ×
      </label>
      <input
        key={props.whole} // a new element, because a value above the previous maximum would be reduced to that maximum
        type="range"
        min="0"
        max={props.whole}
        step="any"
        value={at_s}
        aria-label="Replay position"
        aria-valuetext={seconds(at_s)}
        onInput={(event) => {
          const value = Number(event.currentTarget.value);
          replay.speed.value = 0;
          replay.now_s.value = value >= props.whole ? null : value;
        }}
      />
      <span>{seconds(at_s) || "0 s"}</span>
    </div>
  );
}
