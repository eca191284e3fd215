/** Dialogs to create and change teams and keys: rights, expiry, budgets, rates and policies. */
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { type ApiKey, type Budget, myKey, type Scope, type Team } from "../data/access";
import { get, post, words } from "../data/api";
import { changes, type Policy } from "../data/policy";
import { PolicyFields, RateFields } from "../parts/policyForm";
import { Alert, Confirmed, Copy, Dialog, Form, Select, Spending } from "../parts/ui";

/** A limit as the user typed it, or null if it was not changed. */
interface Limits {
  day: string | null;
  month: string | null;
}

const NO_LIMITS: Limits = { day: null, month: null };
const DAY_S = 86_400;
const EXPIRIES: readonly (readonly [string, string])[] = [
  ["", "never"],
  ["7", "in 7 days"],
  ["30", "in 30 days"],
  ["90", "in 90 days"],
  ["365", "in a year"],
  ["date", "on a date"],
];
/** Seconds for which a replaced secret still works. */
const OVERLAPS: readonly (readonly [string, string])[] = [
  ["0", "no longer"],
  ["3600", "for another hour"],
  [`${DAY_S}`, "for another day"],
  [`${7 * DAY_S}`, "for another week"],
];
const RIGHTS: readonly (readonly [Scope, string, string])[] = [
  ["run", "Send requests", "Call models and workers, and ask for plans"],
  ["read", "Read runs", "See the runs of its team"],
  ["admin", "Administrator", "Manage teams and keys, and see everything"],
];

/** Budgets, rates and policy of a team or key, which are loaded and saved in the same way. */
function useRules(path: string | null) {
  const budget = useSignal<Budget | null>(null);
  const limits = useSignal<Limits>(NO_LIMITS);
  const policy = useSignal<Policy>({});
  const before = useSignal<Policy>({});
  const fault = useSignal("");
  useEffect(() => {
    if (!path) return;
    Promise.all([get<Budget>(`${path}/budget`), get<{ policy: Policy }>(`${path}/policy`)])
      .then(([newBudget, { policy: stated }]) => {
        budget.value = newBudget;
        policy.value = before.value = stated;
      })
      .catch((error: unknown) => (fault.value = words(error)));
  }, [path]);
  /** Send what has changed. */
  const save = async (to: string) => {
    const { day, month } = limits.value;
    const changed = { ...(day === null ? {} : { day_usd: limitOf(day) }), ...(month === null ? {} : { month_usd: limitOf(month) }) };
    if (Object.keys(changed).length) budget.value = await post<Budget>(`${to}/budget`, changed);
    limits.value = NO_LIMITS;
    const rules = changes(before.value, policy.value);
    if (Object.keys(rules).length) policy.value = before.value = (await post<{ policy: Policy }>(`${to}/policy`, rules)).policy;
  };
  return { budget: budget.value, limits, policy, fault, save };
}

function limitOf(text: string): string | null {
  return text.trim() || null;
}

export function TeamDialog(props: { team: Team | null; onClose: () => void; onSaved: () => void }) {
  const name = useSignal("");
  const enabled = useSignal(props.team?.enabled ?? true);
  const team = useSignal(props.team);
  const busy = useSignal(false);
  const rules = useRules(props.team ? `/v1/admin/teams/${props.team.id}` : null);
  const save = async (close: () => void) => {
    busy.value = true;
    rules.fault.value = "";
    try {
      team.value ??= await post<Team>("/v1/admin/teams", { name: name.value.trim() });
      const path = `/v1/admin/teams/${team.value.id}`;
      if (enabled.value !== team.value.enabled) team.value = await post<Team>(path, { enabled: enabled.value });
      await rules.save(path);
      props.onSaved();
      close();
    } catch (error) {
      rules.fault.value = words(error);
      if (team.value !== props.team) props.onSaved();
    }
    busy.value = false;
  };
  return (
    <Dialog title={props.team ? `Team ${props.team.name}` : "New team"} wide onClose={props.onClose}>
      {(close) => (
        <DialogForm submit={props.team ? "Save" : "Create team"} disabled={busy.value} fault={rules.fault.value} onSubmit={() => void save(close)} onCancel={close}>
          {props.team ? (
            <label class="check">
              <input type="checkbox" checked={enabled.value} onChange={(event) => (enabled.value = event.currentTarget.checked)} />
              The team’s keys are accepted
            </label>
          ) : (
            <label>
              Name
              <input required maxLength={100} value={name.value} disabled={team.value !== null} onInput={(event) => (name.value = event.currentTarget.value)} />
            </label>
          )}
          <BudgetFields budget={rules.budget} limits={rules.limits} of="all keys of the team together" />
          <RateFields policy={rules.policy} />
          <PolicyFields policy={rules.policy} />
        </DialogForm>
      )}
    </Dialog>
  );
}

export function KeyDialog(props: { apiKey: ApiKey | null; teams: Team[]; onClose: () => void; onSaved: () => void }) {
  const existing = props.apiKey;
  const apiKey = useSignal(existing);
  const name = useSignal("");
  const team = useSignal("");
  const scopes = useSignal<Set<Scope>>(new Set(existing?.scopes ?? ["run", "read"]));
  const expiry = useSignal(existing?.expires_at ? "date" : "");
  const date = useSignal(existing?.expires_at ? localDate(existing.expires_at) : "");
  const secret = useSignal("");
  const busy = useSignal(false);
  const rules = useRules(existing ? `/v1/admin/keys/${existing.id}` : null);
  const isActive = !existing || existing.state === "active" || existing.state === "team off";
  const expires_at = () => {
    if (expiry.value === "") return null;
    if (expiry.value === "date") return existing?.expires_at && date.value === localDate(existing.expires_at) ? existing.expires_at : new Date(date.value).toISOString();
    return new Date(Date.now() + Number(expiry.value) * DAY_S * 1000).toISOString();
  };
  const save = async (close: () => void) => {
    busy.value = true;
    rules.fault.value = "";
    try {
      if (!apiKey.value) {
        const made = await post<ApiKey & { secret: string }>("/v1/admin/keys", { name: name.value.trim(), team: team.value || null, scopes: [...scopes.value], expires_at: expires_at() });
        apiKey.value = made;
        secret.value = made.secret;
      } else if (existing) {
        const changed = { ...(sameScopes(existing.scopes, scopes.value) ? {} : { scopes: [...scopes.value] }), ...(expires_at() === existing.expires_at ? {} : { expires_at: expires_at() }) };
        if (Object.keys(changed).length) await post(`/v1/admin/keys/${existing.id}`, changed);
      }
      await rules.save(`/v1/admin/keys/${apiKey.value!.id}`);
      props.onSaved();
      if (!secret.value) close();
    } catch (error) {
      rules.fault.value = words(error);
      if (secret.value) props.onSaved();
    }
    busy.value = false;
  };
  const act = async (work: () => Promise<unknown>, onDone: () => void = () => undefined) => {
    try {
      await work();
      props.onSaved();
      onDone();
    } catch (error) {
      rules.fault.value = words(error);
    }
  };
  const renew = (overlap_s: number) => act(async () => (secret.value = (await post<{ secret: string }>(`/v1/admin/keys/${existing!.id}/rotate`, { overlap_s })).secret));
  const isDone = secret.value !== "" && !rules.fault.value;
  return (
    <Dialog title={existing ? `Key ${existing.name}` : isDone ? `Key ${name.value.trim()} is ready` : "New key"} wide onClose={props.onClose}>
      {(close) => (
        <>
          {secret.value ? <Secret text={secret.value} /> : null}
          {isDone && !existing ? (
            <p class="buttons">
              <button type="button" class="go" onClick={close}>
                Done
              </button>
            </p>
          ) : (
            <DialogForm submit={existing ? "Save" : "Create key"} disabled={busy.value || scopes.value.size === 0} fault={rules.fault.value} onSubmit={() => void save(close)} onCancel={close}>
              {existing ? (
                <p class="soft">
                  {existing.team ? `In the team ${existing.team.name}` : "In no team"} · ends with <code>{existing.hint}</code> · created {new Date(existing.created_at).toLocaleDateString()}
                </p>
              ) : (
                <div class="fields two">
                  <label>
                    Name
                    <input required maxLength={100} value={name.value} placeholder="what it is for" onInput={(event) => (name.value = event.currentTarget.value)} />
                  </label>
                  <Select
                    label="Team"
                    value={team.value}
                    options={[["", "no team"], ...props.teams.map((each) => [each.id, each.name] as const)]}
                    onChange={(id) => {
                      team.value = id;
                      if (id) scopes.value = without(scopes.value, "admin");
                    }}
                  />
                </div>
              )}
              <Rights scopes={scopes} team={existing ? existing.team !== null : team.value !== ""} isOwn={existing !== null && existing.id === myKey()?.id} isActive={isActive} />
              <div class="fields two">
                <Select label="Expires" value={expiry.value} options={EXPIRIES} disabled={!isActive} onChange={(value) => (expiry.value = value)} />
                {expiry.value === "date" ? (
                  <label>
                    Date
                    <input type="datetime-local" required value={date.value} disabled={!isActive} onInput={(event) => (date.value = event.currentTarget.value)} />
                  </label>
                ) : null}
              </div>
              <BudgetFields budget={rules.budget} limits={rules.limits} of={`this key${existing?.team || team.value ? ", within the team’s budget" : ""}`} />
              <RateFields policy={rules.policy} />
              <PolicyFields policy={rules.policy} />
            </DialogForm>
          )}
          {existing && isActive ? <Danger apiKey={existing} onRenew={(overlap_s) => void renew(overlap_s)} onRevoke={() => void act(() => post(`/v1/admin/keys/${existing.id}`, undefined, "DELETE"), close)} /> : null}
        </>
      )}
    </Dialog>
  );
}

/** Fields of a dialog, the error of its request, and its buttons. */
function DialogForm(props: { submit: string; disabled: boolean; fault: string; onSubmit: () => void; onCancel: () => void; children: ComponentChildren }) {
  return (
    <Form class="fields" onSubmit={props.onSubmit}>
      {props.children}
      <Alert text={props.fault} />
      <p class="buttons">
        <button type="submit" class="go" disabled={props.disabled}>
          {props.submit}
        </button>
        <button type="button" onClick={props.onCancel}>
          Cancel
        </button>
      </p>
    </Form>
  );
}

function Rights(props: { scopes: Signal<Set<Scope>>; team: boolean; isOwn: boolean; isActive: boolean }) {
  const { scopes } = props;
  const isAdmin = scopes.value.has("admin");
  return (
    <fieldset>
      <legend>It may</legend>
      <div class="rights-choice">
        {RIGHTS.map(([scope, title, meaning]) => (
          <label class="check" key={scope}>
            <input
              type="checkbox"
              checked={scopes.value.has(scope) || isAdmin}
              disabled={!props.isActive || props.isOwn || (scope === "admin" ? props.team : isAdmin)}
              onChange={(event) => (scopes.value = event.currentTarget.checked ? new Set([...scopes.value, scope]) : without(scopes.value, scope))}
            />
            <span>
              {title} <small class="soft">{meaning}</small>
            </span>
          </label>
        ))}
      </div>
      {props.team ? <p class="small soft">A key of a team cannot be an administrator.</p> : null}
      {props.isOwn ? <p class="small soft">You are using this key now, so its rights can only be changed with another key.</p> : null}
    </fieldset>
  );
}

function BudgetFields(props: { budget: Budget | null; limits: Signal<Limits>; of: string }) {
  const { budget, limits } = props;
  const field = (period: "day" | "month", title: string, spent: string) => {
    return (
      <div>
        <label>
          {title}
          <input inputMode="decimal" pattern="[0-9]*[.]?[0-9]*" placeholder="no limit" value={limits.value[period] ?? budget?.[period].limit_usd ?? ""} onInput={(event) => (limits.value = { ...limits.value, [period]: event.currentTarget.value })} />
        </label>
        <Spending label={spent} window={budget?.[period]} />
      </div>
    );
  };
  return (
    <fieldset>
      <legend>Budget of {props.of}</legend>
      <div class="fields two">
        {field("day", "Per day ($)", "Spent today")}
        {field("month", "Per month ($)", "Spent this month")}
      </div>
    </fieldset>
  );
}

/** Secret of a new or renewed key, and how a client sends it. */
function Secret(props: { text: string }) {
  return (
    <div class="secret" role="status">
      <p>
        <strong>This secret is shown only once.</strong> Store it now.
      </p>
      <p class="command">
        <code>{props.text}</code> <Copy text={props.text} name="the secret" />
      </p>
      <p class="small soft">
        Clients use {location.origin}/v1 as their base URL, and the secret as their API key.
      </p>
    </div>
  );
}

function Danger(props: { apiKey: ApiKey; onRenew: (overlap_s: number) => void; onRevoke: () => void }) {
  const overlap = useSignal("0");
  return (
    <div class="danger-zone">
      <Confirmed name="Create a new secret" question="The key keeps its name, rights and budgets." onConfirm={() => props.onRenew(Number(overlap.value))}>
        <Select label="The old secret works" value={overlap.value} options={OVERLAPS} onChange={(value) => (overlap.value = value)} />
      </Confirmed>
      <Confirmed name="Revoke this key" question={`Servers reject ${props.apiKey.name} within 10 s. This cannot be undone.`} onConfirm={props.onRevoke} />
    </div>
  );
}

function without(scopes: Set<Scope>, scope: Scope): Set<Scope> {
  return new Set([...scopes].filter((each) => each !== scope));
}

function sameScopes(one: Scope[], other: Set<Scope>): boolean {
  return one.length === other.size && one.every((scope) => other.has(scope));
}

/** Return a time as an input for local times expects it. */
function localDate(iso: string): string {
  const time = new Date(iso);
  return new Date(time.getTime() - 60_000 * time.getTimezoneOffset()).toISOString().slice(0, 16);
}
