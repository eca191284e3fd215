/** Run as the page shows it, built from its record or its events, or replayed from its record. */
import { type Signal, signal } from "@preact/signals";
import type { ApiFault, ApiFeedback, ApiPlan, ApiRun, ApiStep, Attempt, Caching, ToolCall, Turn, Usage } from "./record";
import type { Wait } from "./waits";

export interface Step extends Omit<ApiStep, "output"> {
  /** Calls of the client's tools, and their results. */
  turns: Turn[];
  /** Output so far. It is a signal, so that a new word redraws only one text. */
  words: Signal<string>;
}

export interface Plan extends Omit<ApiPlan, "output"> {
  words: Signal<string>;
  steps: Step[];
}

export interface Run extends Caching {
  id: string;
  model: string;
  status: string;
  account: ApiRun["account"];
  created: number;
  trace_id: string | null;
  /** `length` if the answer was cut off at a token limit. */
  finish_reason: string | null;
  error: ApiFault | null;
  fallback: string | null;
  conversation: string | null;
  cost_usd: number | null;
  total_tokens: number | null;
  critical_path_s: number | null;
  has_content: boolean;
  /** Newest message of the user. */
  question: string;
  plans: Plan[];
  /** Waits for the client's tools. */
  waits: Wait[];
  feedback: ApiFeedback[];
  answer: Signal<string>;
  thoughts: Signal<string>;
  /** Seconds from the start of the run to the state that is shown. */
  now_s: number;
}

export const OVER = new Set(["finished", "failed", "cancelled", "lost", "expired"]);

export function fromRecord(api: ApiRun): Run {
  const plans = api.plans.map((plan): Plan => ({ ...plan, words: signal(plan.output ?? ""), steps: [] }));
  for (const step of api.steps) plans[step.plan]?.steps.push({ ...step, turns: step.turns ?? [], words: signal(step.output ?? "") });
  return {
    id: api.id,
    model: api.model,
    status: api.status,
    account: api.account,
    created: api.created,
    trace_id: api.trace_id,
    finish_reason: api.finish_reason,
    error: api.error,
    fallback: api.fallback,
    conversation: api.conversation,
    cost_usd: api.cost_usd,
    cached_share: api.cached_share,
    saved_usd: api.saved_usd,
    total_tokens: api.usage.total_tokens,
    critical_path_s: api.critical_path_s,
    has_content: api.content,
    question: questionOf(api),
    plans,
    waits: api.segments ?? [],
    feedback: api.feedback ?? [],
    answer: signal(api.answer),
    thoughts: signal(""),
    now_s: api.wall_s,
  };
}

export function questionOf(api: ApiRun): string {
  return api.messages.findLast((message) => message.role === "user")?.content ?? "";
}

/** Return a running run without plans and answer. Its events, read from the beginning, add them. */
export function begun(api: ApiRun): Run {
  return {
    id: api.id,
    model: api.model,
    account: api.account,
    created: api.created,
    question: questionOf(api),
    has_content: api.content,
    status: "running",
    trace_id: null,
    finish_reason: null,
    error: null,
    fallback: null,
    conversation: api.conversation,
    cost_usd: null,
    cached_share: null,
    saved_usd: null,
    total_tokens: null,
    critical_path_s: null,
    plans: [],
    waits: [],
    feedback: [],
    answer: signal(""),
    thoughts: signal(""),
    now_s: 0,
  };
}

/** An event of `GET /v1/workflows/{id}/events`. */
export interface RunEvent {
  type: string;
  at_s?: number;
  plan?: number;
  step?: number | null;
  [field: string]: unknown;
}

const NOTHING_YET = {
  prompt: [],
  served_by: null,
  model: null,
  reasoning: null,
  usage: null,
  cost_usd: null,
  cached_share: null,
  saved_usd: null,
  finish_reason: null,
  attempts: [],
  notes: [],
  reused_from: null,
  started_s: null,
  first_token_s: null,
  ended_s: null,
  error: null,
  inner: null,
  turns: [],
};

/** Return the run after `event`. New words change signals. All other events return a new object. */
export function after(run: Run, event: RunEvent): Run {
  const at = event.at_s ?? run.now_s;
  const text = typeof event.text === "string" ? event.text : "";
  switch (event.type) {
    case "work": {
      const words = event.step === null ? run.plans[event.plan ?? 0]?.words : stepOf(run, event)?.words;
      if (words) words.value += text;
      return run;
    }
    case "answer":
      run.answer.value += text;
      sayLast(run);
      run.thoughts.value += typeof event.reasoning === "string" ? event.reasoning : "";
      return run;
    case "answer_restarted":
      run.answer.value = text;
      sayLast(run);
      run.thoughts.value = typeof event.reasoning === "string" ? event.reasoning : "";
      return run;
    case "plan_began":
      return { ...run, now_s: at, plans: [...run.plans, newPlan(event, run.plans.length, at)] };
    case "plan_ended":
      speak(run.plans[event.plan ?? 0]?.words, event.output);
      return withPlan(run, event, at, (plan) => ({
        ...plan,
        ended_s: at,
        usage: (event.usage as Usage | null) ?? null,
        cost_usd: (event.cost_usd as number | null) ?? null,
        attempts: (event.attempts as Attempt[] | undefined) ?? [],
        accepted: Boolean(event.accepted),
        rejected: (event.rejected as string | null) ?? null,
        why: (event.why as string) ?? "",
      }));
    case "step_planned":
      return withPlan(run, event, at, (plan) => ({ ...plan, steps: [...plan.steps, newStep(plan, event, at)] }));
    case "finished":
    case "failed":
    case "cancelled":
      return { ...run, now_s: at, status: event.type, finish_reason: (event.finish_reason as string | undefined) ?? null, error: (event.error as Run["error"]) ?? run.error };
    case "waits_for_tools":
      return { ...run, now_s: at, status: "waiting", waits: [...run.waits, { at_s: at, waited_s: null, suspended: (event.suspended as number | null) ?? null }] };
    case "resumed":
      return resumed(run, event, at);
    case "step_began":
      speak(stepOf(run, event)?.words, "");
      return withStep(run, event, at);
    case "step_ended":
      speak(stepOf(run, event)?.words, event.output);
      return withStep(run, event, at);
    default:
      return withStep(run, event, at);
  }
}

/** Return the run after it resumed: with tool results if it waited for some, else in another process. */
function resumed(run: Run, event: RunEvent, at: number): Run {
  const results = event.results as ToolCall[] | undefined;
  if (!results) return { ...run, status: "running" };
  const byNumber = new Map(results.map((result) => [result.number, result]));
  const waits = run.waits.map((wait) => (wait.waited_s === null ? { ...wait, waited_s: (event.waited_s as number | null) ?? 0 } : wait));
  const plans = run.plans.map((plan) => ({ ...plan, steps: plan.steps.map((step) => answered(step, byNumber, at)) }));
  return { ...run, status: "running", now_s: at, waits, plans };
}

function answered(step: Step, byNumber: Map<number, ToolCall>, at: number): Step {
  const last = step.turns.at(-1);
  if (!last || last.answered_s !== null) return step;
  const calls = last.tool_calls.map((call) => ({ ...call, ...byNumber.get(call.number) }));
  const isWhole = calls.every((call) => call.result !== null && call.result !== undefined);
  const turn = { ...last, tool_calls: calls, answered_s: isWhole ? at : null };
  return { ...step, turns: [...step.turns.slice(0, -1), turn], status: isWhole ? "planned" : step.status };
}

/** Add words of the last step, which are the answer. */
function sayLast(run: Run): void {
  speak(run.plans.at(-1)?.steps.at(-1)?.words, run.answer.value);
}

function speak(words: Signal<string> | undefined, output: unknown): void {
  if (words && typeof output === "string") words.value = output;
}

function stepOf(run: Run, event: RunEvent): Step | undefined {
  return run.plans[event.plan ?? 0]?.steps[event.step ?? -1];
}

function newPlan(event: RunEvent, index: number, at: number): Plan {
  return {
    plan: index,
    round: (event.round as number) ?? 0,
    source: (event.source as string) ?? "conductor",
    worker: (event.worker as string | null) ?? null,
    prompt: [],
    usage: null,
    cost_usd: null,
    cached_share: null,
    saved_usd: null,
    attempts: [],
    accepted: false,
    rejected: null,
    why: "",
    error: null,
    started_s: at,
    ended_s: null,
    words: signal(""),
    steps: [],
  };
}

function newStep(plan: Plan, event: RunEvent, at: number): Step {
  return {
    ...NOTHING_YET,
    plan: plan.plan,
    round: plan.round,
    step: plan.steps.length,
    worker: String(event.worker ?? ""),
    subtask: String(event.subtask ?? ""),
    access: (event.access as number[]) ?? [],
    needs: String(event.needs ?? ""),
    status: "planned",
    planned_s: at,
    words: signal(""),
  };
}

function withPlan(run: Run, event: RunEvent, at: number, change: (plan: Plan) => Plan): Run {
  const plans = run.plans.map((plan) => (plan.plan === event.plan ? change(plan) : plan));
  return { ...run, now_s: Math.max(run.now_s, at), plans };
}

function withStep(run: Run, event: RunEvent, at: number): Run {
  const facts = stepFacts(event, at, stepOf(run, event));
  if (!facts || event.step === null || event.step === undefined) return { ...run, now_s: Math.max(run.now_s, at) };
  return withPlan(run, event, at, (plan) => ({
    ...plan,
    steps: plan.steps.map((step) => (step.step === event.step ? { ...step, ...facts } : step)),
  }));
}

function stepFacts(event: RunEvent, at: number, step: Step | undefined): Partial<Step> | null {
  const goesOn = Boolean(step?.turns.length);
  switch (event.type) {
    case "step_began":
      return { status: "running", started_s: goesOn ? step!.started_s : at, ended_s: null };
    case "step_spoke":
      return { first_token_s: step?.first_token_s ?? at, served_by: (event.served_by as string) ?? null };
    case "step_calls_tools": {
      const calls = (event.tool_calls as ToolCall[] | undefined) ?? [];
      const turn = { output: String(event.output ?? ""), tool_calls: calls, called_s: at, answered_s: null };
      return { status: "waiting", ended_s: at, turns: [...(step?.turns ?? []), turn] };
    }
    case "step_ended":
      return {
        status: "done",
        ended_s: at,
        usage: (event.usage as Usage | null) ?? null,
        cost_usd: (event.cost_usd as number | null) ?? null,
        attempts: (event.attempts as Attempt[] | undefined) ?? [],
        model: (event.model as string | null) ?? null,
        finish_reason: (event.finish_reason as string | null) ?? null,
        reasoning: (event.reasoning as string | null) ?? null,
        notes: (event.notes as string[] | undefined) ?? [],
        span_id: event.span_id as string | undefined,
      };
    case "call_failed":
      return { attempts: [...(step?.attempts ?? []), event as unknown as Attempt] };
    case "waits":
      return { notes: [String(event.why ?? "")] };
    case "step_reused":
      return { status: "done", ended_s: at, reused_from: (event.reused_from as number) ?? null };
    case "step_restarted":
      return { status: "planned", first_token_s: null, notes: [`${(event.error as Step["error"])?.message ?? ""} The step restarts.`] };
    case "step_continued":
      return { status: "planned", first_token_s: null, notes: [`${(event.error as Step["error"])?.message ?? ""} The step continues.`] };
    case "step_lost":
      return { status: String(event.why), ended_s: at, error: (event.error as Step["error"]) ?? null };
    default:
      return null;
  }
}

/** Return the state of the run at `now_s` seconds after its start. */
export function at(record: Run, now_s: number): Run {
  const plans = record.plans
    .filter((plan) => (plan.started_s ?? 0) <= now_s)
    .map((plan) => ({
      ...plan,
      ended_s: ifPast(plan.ended_s, now_s),
      words: signal(spoken(plan.words.value, plan.started_s, plan.ended_s, now_s)),
      steps: plan.steps.filter((step) => (step.planned_s ?? 0) <= now_s).map((step) => stepAt(step, now_s)),
    }));
  const last = record.plans.at(-1)?.steps.at(-1);
  const over = now_s >= record.now_s;
  const shown = over ? record.answer.value : spoken(record.answer.value, last?.first_token_s, last?.ended_s, now_s);
  const waits = record.waits.filter((wait) => wait.at_s < now_s || over);
  return { ...record, now_s: Math.min(now_s, record.now_s), status: over ? record.status : "running", plans, waits, answer: signal(shown) };
}

function stepAt(step: Step, now_s: number): Step {
  const ended = ifPast(step.ended_s, now_s);
  const started = ifPast(step.started_s, now_s);
  const turns = step.turns.filter((turn) => (turn.called_s ?? 0) <= now_s);
  const isWaiting = turns.some((turn) => turn.answered_s === null || now_s < turn.answered_s);
  const running = started === null ? "planned" : isWaiting ? "waiting" : "running";
  return {
    ...step,
    started_s: started,
    first_token_s: ifPast(step.first_token_s, now_s),
    ended_s: ended,
    turns: turns.map((turn) => ({ ...turn, answered_s: ifPast(turn.answered_s, now_s) })),
    status: ended === null && step.ended_s !== null ? running : step.status,
    cost_usd: ended === null ? null : step.cost_usd,
    cached_share: ended === null ? null : step.cached_share,
    usage: ended === null ? null : step.usage,
    words: signal(spoken(step.words.value, step.first_token_s, step.ended_s, now_s)),
  };
}

function ifPast(time_s: number | null, now_s: number): number | null {
  return time_s !== null && time_s <= now_s ? time_s : null;
}

/** Return the part of `text` that had arrived at `now_s`, assuming a constant speed. */
function spoken(text: string, from_s: number | null | undefined, to_s: number | null | undefined, now_s: number): string {
  if (from_s === null || from_s === undefined || now_s < from_s) return "";
  if (to_s === null || to_s === undefined || now_s >= to_s) return text;
  return text.slice(0, Math.round((text.length * (now_s - from_s)) / Math.max(to_s - from_s, 1e-9)));
}

/** Return the steps of the critical path, which determined how long the plan took. */
export function criticalPath(plan: Plan): Set<number> {
  const path = new Set<number>();
  let step = plan.steps.at(-1);
  while (step) {
    path.add(step.step);
    const reads: Step[] = step.access.map((index) => plan.steps[index]).filter((each): each is Step => each !== undefined);
    step = reads.sort((a, b) => (b.ended_s ?? Infinity) - (a.ended_s ?? Infinity))[0];
  }
  return path;
}
