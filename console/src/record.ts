/** What `GET /v1/workflows/{id}` gives, as far as the page reads it. */
import type { Wait } from "./waits";

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  reasoning_tokens: number;
}

/** What went wrong. Operators are told the `detail` too; what failed before it is in `podium`. */
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
  /** `failed`, `cut`, or `lost_race`: another call of the same question answered before it. */
  outcome?: string;
  /** Whether it was a second call beside a slow one. */
  hedge?: boolean;
  took_s?: number | null;
}

export interface ApiMessage {
  role: string;
  content: string;
}

/** A call of one of the client's tools, and what came of it. */
export interface ToolCall {
  number: number;
  name: string;
  arguments: string;
  /** null, or missing: it is waited for. */
  result?: string | null;
  is_error?: boolean;
}

/** What a step said, the tools it called with that, what they gave. */
export interface Turn {
  output: string;
  tool_calls: ToolCall[];
  called_s: number | null;
  answered_s: number | null;
}

/** A step in `GET /v1/workflows/{id}`. */
export interface ApiStep {
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
  /** Of its call, in the trace; none where nothing is traced. */
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

export interface ApiPlan {
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

/** What somebody said of a run. */
export interface ApiFeedback {
  key_id: string | null;
  score: number | null;
  labels: string[];
  comment: string;
  expected: string;
}

/** `GET /v1/workflows/{id}`. */
export interface ApiRun {
  id: string;
  model: string;
  status: string;
  content: boolean;
  created: number;
  trace_id: string | null;
  rounds: number;
  fallback: string | null;
  messages: ApiMessage[];
  answer: string;
  finish_reason: string | null;
  error: ApiFault | null;
  usage: { total_tokens: number };
  cost_usd: number | null;
  wall_s: number;
  /** Of a run that goes on: for how long already, by the server's clock. */
  now_s?: number;
  /** Its plan was written, and nothing of it run. */
  plan_only?: boolean;
  critical_path_s: number;
  plans: ApiPlan[];
  steps: ApiStep[];
  segments?: Wait[];
  /** Not in lists. */
  feedback?: ApiFeedback[];
}
