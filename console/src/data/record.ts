/** Fields of `GET /v1/workflows/{id}` that the console reads. */
import type { Wait } from "./waits";

/** Effect of the provider's cache on a call or a run. */
export interface Caching {
  /** Share of the input tokens that were read from a cache. Null if the tokens are unknown. */
  cached_share: number | null;
  /** Null if the price is unknown. Negative if writing the cache cost more than reading it saved. */
  saved_usd: number | null;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  reasoning_tokens: number;
}

/** Error of a run, plan or step. Only operators see `detail`. `podium` has the failed attempts before it. */
export interface ApiFault {
  message: string;
  detail?: string;
  podium?: { attempts?: Attempt[] };
}

export interface Attempt {
  worker: string;
  error: string;
  message: string;
  /** For operators only. */
  detail?: string;
  waited_s: number;
  /** `failed`, `cut`, `lost_race` if another call for the same question answered first, or `left_alone` if nothing
   * was sent. */
  outcome?: string;
  /** Null if the server reported no cost. */
  cost_usd?: number | null;
  /** True for a hedge, which is a call that is sent in addition to a slow one. */
  hedge?: boolean;
  took_s?: number | null;
}

export interface ApiMessage {
  role: string;
  content: string;
}

/** Call of one of the client's tools, and its result. */
export interface ToolCall {
  number: number;
  name: string;
  arguments: string;
  /** Null or missing until the client sends the result. */
  result?: string | null;
  is_error?: boolean;
}

/** Output of a step, the tools that it called, and their results. */
export interface Turn {
  output: string;
  /** Worker, usage, cost and failed attempts of the turn's call. Events do not have them. */
  worker?: string;
  usage?: Usage | null;
  cost_usd?: number | null;
  attempts?: Attempt[];
  tool_calls: ToolCall[];
  called_s: number | null;
  answered_s: number | null;
}

/** A step in `GET /v1/workflows/{id}`. */
export interface ApiStep extends Caching {
  plan: number;
  round: number;
  step: number;
  worker: string;
  subtask: string;
  access: number[];
  needs?: string;
  tools?: boolean;
  status: string;
  prompt: ApiMessage[];
  served_by: string | null;
  model: string | null;
  output: string | null;
  reasoning: string | null;
  usage: Usage | null;
  cost_usd: number | null;
  finish_reason: string | null;
  /** Span of the step's call in the trace. Missing if tracing is off. */
  span_id?: string;
  attempts: Attempt[];
  notes: string[];
  reused_from: number | null;
  planned_s: number | null;
  started_s: number | null;
  first_token_s: number | null;
  ended_s: number | null;
  error: ApiFault | null;
  inner: ApiRun | null;
  turns?: Turn[];
}

export interface ApiPlan extends Caching {
  plan: number;
  round: number;
  source: string;
  worker: string | null;
  prompt: ApiMessage[];
  output: string | null;
  usage: Usage | null;
  cost_usd: number | null;
  attempts: Attempt[];
  accepted: boolean;
  rejected: string | null;
  why: string;
  error: ApiFault | null;
  started_s: number | null;
  ended_s: number | null;
}

/** Feedback on a run. */
export interface ApiFeedback {
  key_id: string | null;
  score: number | null;
  labels: string[];
  comment: string;
  expected: string;
}

/** `GET /v1/workflows/{id}`. */
export interface ApiRun extends Caching {
  id: string;
  model: string;
  status: string;
  content: boolean;
  created: number;
  trace_id: string | null;
  rounds: number;
  /** Key and team of the run. Null if the server needed no key. */
  account?: { key_id: string; team_id: string | null } | null;
  /** Id of the conversation, for the list of its runs. */
  conversation: string | null;
  /** Run whose answer was reused, if the answer came from the cache. */
  cached_from?: string;
  fallback: string | null;
  messages: ApiMessage[];
  answer: string;
  finish_reason: string | null;
  error: ApiFault | null;
  usage: { total_tokens: number };
  cost_usd: number | null;
  wall_s: number;
  /** Seconds since the start of a running run, by the server's clock. */
  now_s?: number;
  /** Return whether only a plan was requested and no step ran. */
  plan_only?: boolean;
  critical_path_s: number;
  plans: ApiPlan[];
  steps: ApiStep[];
  segments?: Wait[];
  /** Not in lists. */
  feedback?: ApiFeedback[];
}
