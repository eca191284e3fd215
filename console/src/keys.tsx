/** Teams, keys and budgets. Needs a key with the scope `admin`. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, post, words } from "./api";
import { Columns } from "./columns";
import { Ledger } from "./ledger";

interface Team {
  id: string;
  name: string;
  enabled: boolean;
}

interface Key {
  id: string;
  name: string;
  hint: string;
  scopes: string[];
  team: Team | null;
  state: string;
}

interface Window {
  limit_usd: string | null;
  spent_usd: string;
  held_usd: string;
}

interface Budget {
  day: Window;
  month: Window;
}

/** Function that does some work and then reloads the page's data, or shows the error. */
type Run = (work: () => Promise<unknown>) => void;

export function Keys() {
  const teams = useSignal<Team[]>([]);
  const keys = useSignal<Key[]>([]);
  const budgets = useSignal<Record<string, Budget>>({});
  const secret = useSignal("");
  const fault = useSignal("");
  const load = async () => {
    const [foundTeams, foundKeys] = await Promise.all([
      get<{ data: Team[] }>("/v1/admin/teams"),
      get<{ data: Key[] }>("/v1/admin/keys?limit=1000"),
    ]);
    teams.value = foundTeams.data;
    keys.value = foundKeys.data;
    const found = await Promise.all(foundTeams.data.map((team) => get<Budget>(`/v1/admin/teams/${team.id}/budget`)));
    budgets.value = Object.fromEntries(foundTeams.data.map((team, index) => [team.id, found[index]!]));
  };
  const run: Run = (work) => {
    fault.value = "";
    work()
      .then(load)
      .catch((error: unknown) => (fault.value = words(error)));
  };
  useEffect(() => run(async () => undefined), []);
  return (
    <section>
      <h1>Keys and budgets</h1>
      {fault.value ? (
        <p class="fault" role="alert">
          {fault.value}
        </p>
      ) : null}
      {secret.value ? (
        <p class="note" role="status">
          Secret of the key (shown only once): <code>{secret.value}</code>{" "}
          <button type="button" onClick={() => void navigator.clipboard.writeText(secret.value)}>
            Copy
          </button>
        </p>
      ) : null}
      <h2>Teams</h2>
      <NewTeam onMake={(name) => run(() => post("/v1/admin/teams", { name }))} />
      <div class="scrolls" role="group" aria-label="Teams" tabIndex={0}>
        <table>
          <Columns names={["Team", "Today", "This month", "Budget ($)", ""]} />
          <tbody>
            {teams.value.map((team) => (
              <TeamRow key={team.id} team={team} budget={budgets.value[team.id]} run={run} />
            ))}
          </tbody>
        </table>
      </div>
      <h2>Keys</h2>
      <NewKey
        teams={teams.value}
        onMake={(body) => run(async () => (secret.value = (await post<{ secret: string }>("/v1/admin/keys", body)).secret))}
      />
      <div class="scrolls" role="group" aria-label="Keys" tabIndex={0}>
        <table>
          <Columns names={["Key", "Team", "Scopes", "Ends with", "Status", "Own budget", ""]} />
          <tbody>
            {keys.value.map((each) => (
              <tr key={each.id}>
                <td>{each.name}</td>
                <td>{each.team?.name ?? "no team"}</td>
                <td>{each.scopes.join(", ")}</td>
                <td>
                  <code>{each.hint}</code>
                </td>
                <td>{each.state}</td>
                <td>
                  <KeyBudget of={each} run={run} />
                </td>
                <td>
                  <button type="button" disabled={each.state !== "active"} onClick={() => {
                    if (confirm(`Create a new secret for ${each.name}? Servers reject the old secret within 10 s.`))
                      run(async () => (secret.value = (await post<{ secret: string }>(`/v1/admin/keys/${each.id}/rotate`, {})).secret));
                  }}>
                    New secret for {each.name}
                  </button>{" "}
                  <button type="button" disabled={each.state !== "active"} onClick={() => {
                    if (confirm(`Revoke ${each.name}? Servers reject this key within 10 s. You cannot undo this.`))
                      run(() => post(`/v1/admin/keys/${each.id}`, undefined, "DELETE"));
                  }}>
                    Revoke {each.name}
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Ledger teams={new Map(teams.value.map((each) => [each.id, each.name]))} keys={new Map(keys.value.map((each) => [each.id, each.name]))} />
    </section>
  );
}

function NewTeam(props: { onMake: (name: string) => void }) {
  const name = useSignal("");
  return (
    <form
      class="limits"
      onSubmit={(event) => {
        event.preventDefault();
        props.onMake(name.value);
        name.value = "";
      }}
    >
      <label>
        Name of the new team
        <input required value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} />
      </label>
      <button type="submit">Create team</button>
    </form>
  );
}

function NewKey(props: { teams: Team[]; onMake: (body: Record<string, unknown>) => void }) {
  const name = useSignal("");
  const team = useSignal("");
  const admin = useSignal(false);
  return (
    <form
      class="limits"
      onSubmit={(event) => {
        event.preventDefault();
        props.onMake({ name: name.value, team: team.value || null, ...(admin.value ? { scopes: ["admin"] } : {}) });
        name.value = "";
      }}
    >
      <label>
        Name of the new key
        <input required value={name.value} onInput={(event) => (name.value = event.currentTarget.value)} />
      </label>
      <label>
        Team of the key
        <select value={team.value} onChange={(event) => (team.value = event.currentTarget.value)}>
          <option value="">no team</option>
          {props.teams.map((each) => (
            <option key={each.id} value={each.id}>
              {each.name}
            </option>
          ))}
        </select>
      </label>
      <label class="check">
        <input type="checkbox" checked={admin.value} disabled={team.value !== ""} onChange={(event) => (admin.value = event.currentTarget.checked)} />
        Administrator
      </label>
      <button type="submit">Create key</button>
    </form>
  );
}

/** Budget of one key within the budget of its team. It is loaded on demand, because there may be a thousand keys. */
function KeyBudget(props: { of: Key; run: Run }) {
  const key = props.of;
  const path = `/v1/admin/keys/${key.id}/budget`;
  const budget = useSignal<Budget | undefined>(undefined);
  const load = async () => (budget.value = await get<Budget>(path));
  if (budget.value === undefined)
    return (
      <button type="button" onClick={() => props.run(load)}>
        Show budget of {key.name}
      </button>
    );
  return (
    <>
      <p>
        Today: {spending(budget.value.day)}. This month: {spending(budget.value.month)}.
      </p>
      <Limits name={key.name} budget={budget.value} set={(limits) => props.run(async () => (budget.value = await post<Budget>(path, limits)))} />
    </>
  );
}

/** Form for the limits per day and per month. An empty field removes its limit. An unchanged field keeps it. */
function Limits(props: { name: string; budget: Budget | undefined; set: (limits: Record<string, string | null>) => void }) {
  const { name, budget } = props;
  const day = useSignal<string | null>(null);
  const month = useSignal<string | null>(null);
  const limit = (text: string) => (text.trim() ? text.trim() : null);
  return (
    <form
      class="limits"
      onSubmit={(event) => {
        event.preventDefault();
        props.set({
          ...(day.value === null ? {} : { day_usd: limit(day.value) }),
          ...(month.value === null ? {} : { month_usd: limit(month.value) }),
        });
      }}
    >
      <label>
        Per day
        <input inputMode="decimal" size={6} value={day.value ?? budget?.day.limit_usd ?? ""} onInput={(event) => (day.value = event.currentTarget.value)} />
      </label>
      <label>
        Per month
        <input inputMode="decimal" size={6} value={month.value ?? budget?.month.limit_usd ?? ""} onInput={(event) => (month.value = event.currentTarget.value)} />
      </label>
      <button type="submit">Set budget of {name}</button>
    </form>
  );
}

function TeamRow(props: { team: Team; budget: Budget | undefined; run: Run }) {
  const { team, budget } = props;
  return (
    <tr>
      <td>{team.name}</td>
      <td>{budget ? spending(budget.day) : ""}</td>
      <td>{budget ? spending(budget.month) : ""}</td>
      <td>
        <Limits name={team.name} budget={budget} set={(limits) => props.run(() => post(`/v1/admin/teams/${team.id}/budget`, limits))} />
      </td>
      <td>
        <button type="button" onClick={() => props.run(() => post(`/v1/admin/teams/${team.id}`, { enabled: !team.enabled }))}>
          {team.enabled ? "Disable" : "Enable"} {team.name}
        </button>
      </td>
    </tr>
  );
}

function spending(window: Window): string {
  const spent = Number(window.spent_usd).toFixed(4);
  const held = Number(window.held_usd) ? `, $${Number(window.held_usd).toFixed(4)} reserved` : "";
  if (window.limit_usd === null) return `$${spent}${held}`;
  const left = Number(window.limit_usd) - Number(window.spent_usd) - Number(window.held_usd);
  return `$${spent} of $${window.limit_usd}${held}, $${Math.max(0, left).toFixed(4)} left`;
}
