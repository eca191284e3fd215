/** Fields of a policy, as `GET /v1/admin/teams/{id}/policy` returns it, and how a form shows them. */

export type PolicyValue = string[] | boolean | number | string | null;
export type Policy = Record<string, PolicyValue>;

export interface Field {
  name: string;
  title: string;
  /** Unit or explanation. */
  hint?: string;
  kind: "names" | "excluded" | "number" | "decimal" | "yes" | "effort";
  /** Choices of the field. Without choices, the field is a text whose names are separated by commas. */
  from?: "models" | "workers";
  /** Value without a restriction. */
  free: PolicyValue;
}

/** Fields that most administrators need. */
export const RATES: readonly Field[] = [
  { name: "requests_per_minute", title: "Requests per minute", kind: "number", free: null },
  { name: "tokens_per_minute", title: "Tokens per minute", kind: "number", free: null },
  { name: "max_cost_usd", title: "Cost of one request ($)", kind: "decimal", free: null },
];

export const USE: readonly Field[] = [
  { name: "models", title: "Models", hint: "Allowed values of `model`", kind: "names", from: "models", free: null },
  { name: "workers", title: "Workers", hint: "Workers that may be called", kind: "names", from: "workers", free: null },
  { name: "exclude_workers", title: "Workers that may not be called", kind: "excluded", free: [] },
  { name: "providers", title: "Providers", kind: "names", free: null },
  { name: "regions", title: "Regions", kind: "names", free: null },
  { name: "tools", title: "Tools of the client", kind: "names", free: null },
  { name: "max_effort", title: "Highest effort", kind: "effort", free: null },
  { name: "max_steps", title: "Steps of a plan", kind: "number", free: null },
  { name: "max_rounds", title: "Rounds of planning", kind: "number", free: null },
  { name: "max_depth", title: "Nesting of runs", kind: "number", free: null },
  { name: "local_only", title: "Only workers on your own machines", kind: "yes", free: false },
];

export const TEXTS: readonly Field[] = [
  { name: "store_content", title: "Store texts of requests and answers", kind: "yes", free: true },
  { name: "trace_content", title: "Allow texts in traces", kind: "yes", free: true },
  { name: "train_on_content", title: "Allow training on the runs", kind: "yes", free: true },
  { name: "redact_personal_data", title: "Remove personal data from stored texts", kind: "yes", free: false },
  { name: "content_days", title: "Store texts for at most (days)", kind: "decimal", free: null },
];

const SHORT: Record<string, string> = {
  requests_per_minute: "requests/min",
  tokens_per_minute: "tokens/min",
};

/** Return what a policy restricts, in a few words each. */
export function restrictions(policy: Policy): string[] {
  return [...RATES, ...USE, ...TEXTS].flatMap((field) => {
    const value = policy[field.name];
    if (value === undefined || value === null || value === field.free) return [];
    if (field.kind === "excluded" && Array.isArray(value) && !value.length) return [];
    if (SHORT[field.name]) return [`${Number(value).toLocaleString("en")} ${SHORT[field.name]}`];
    if (field.name === "max_cost_usd") return [`$${value} per request`];
    if (field.kind === "yes") return [value ? lower(field.title) : `not: ${lower(field.title)}`];
    if (Array.isArray(value)) return [`${lower(field.title)}: ${value.length ? value.join(", ") : "none"}`];
    return [`${lower(field.title)}: ${value}`];
  });
}

function lower(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}

/** Return the fields of `now` that differ from `before`, which is what a request must send. */
export function changes(before: Policy, now: Policy): Policy {
  const same = (one: PolicyValue | undefined, other: PolicyValue | undefined) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
  return Object.fromEntries(Object.entries(now).filter(([name, value]) => !same(value, before[name])));
}

function sorted(value: PolicyValue | undefined): PolicyValue | undefined {
  return Array.isArray(value) ? [...value].sort() : typeof value === "string" && value.trim() && !Number.isNaN(Number(value)) ? Number(value) : value;
}

/** Read names from a text with commas. An empty text allows any, and "none" allows none. */
export function namesOf(text: string): string[] | null {
  const names = text.split(",").map((name) => name.trim()).filter(Boolean);
  if (!names.length) return null;
  return names.length === 1 && names[0] === "none" ? [] : names;
}

export function textOf(names: PolicyValue | undefined): string {
  if (!Array.isArray(names)) return "";
  return names.length ? names.join(", ") : "none";
}
