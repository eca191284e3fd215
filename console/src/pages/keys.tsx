/** Teams, keys and budgets for administrators, and for others their own key and what is left of their budgets. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { access, administers, type ApiKey, type Budget, myKey, type Team, type Window } from "../data/access";
import { get, words } from "../data/api";
import { largest } from "../data/format";
import { loadModels } from "../data/models";
import { keys, loadNames, teams } from "../data/names";
import { type Policy, restrictions } from "../data/policy";
import { Icon } from "../parts/icons";
import { Alert, type Column, Copy, Empty, PageHead, Spending, Table } from "../parts/ui";
import { KeyDialog, TeamDialog } from "./keyDialogs";
import { Ledger } from "./ledger";
import { KeyFacts } from "./signIn";

const CREATE = "podium keys create NAME --scopes admin";
/** Number of keys from which the list gets a search field. */
const MANY = 8;

export function Keys() {
  if (administers()) return <Administration />;
  return (
    <section>
      <PageHead title="Keys" />
      {myKey() ? (
        <OwnKey />
      ) : (
        <Empty
          icon="keys"
          title="This server has no API keys yet."
          action={
            <span class="command">
              <code>{CREATE}</code> <Copy text={CREATE} name="the command" />
            </span>
          }
        >
          It accepts every request from this machine, and none from others. With the first key come teams, budgets, rates and policies. Create it on this machine:
        </Empty>
      )}
    </section>
  );
}

/** Name, team, scopes and budgets of the key in use, if it lacks the scope admin. */
function OwnKey() {
  const own = access.value.state === "open" ? access.value.own : null;
  const mine = myKey();
  if (!own || !mine) return null;
  return (
    <>
      <div class="card">
        <h2>Your key</h2>
        <KeyFacts of={mine} />
      </div>
      <div class="card">
        <h2>Budgets</h2>
        <div class="budgets">
          {own.key ? <OwnBudget title="This key" budget={own.key} /> : null}
          {own.team ? <OwnBudget title={`Team ${mine.team?.name ?? ""}`} budget={own.team} /> : null}
        </div>
      </div>
      <p class="soft">Teams and keys are managed with a key that has the scope admin. Yours does not.</p>
    </>
  );
}

function OwnBudget(props: { title: string; budget: Budget }) {
  return (
    <div>
      <h3>{props.title}</h3>
      <p class="small soft">Today</p>
      <Spending label={`${props.title}, today`} window={props.budget.day} />
      <p class="small soft">This month</p>
      <Spending label={`${props.title}, this month`} window={props.budget.month} />
    </div>
  );
}

/** Return the larger of what a budget has spent and its limit. */
function amountOf(window: Window | undefined): number | null {
  return window ? largest([Number(window.spent_usd), Number(window.limit_usd)]) : null;
}

interface Rules {
  budget: Budget;
  policy: Policy;
}

function Administration() {
  const rules = useSignal<Record<string, Rules>>({});
  const fault = useSignal("");
  const isLoaded = useSignal(false);
  const team = useSignal<Team | "new" | null>(null);
  const apiKey = useSignal<ApiKey | "new" | null>(null);
  const search = useSignal("");
  const showsAll = useSignal(false);
  const load = async () => {
    try {
      await Promise.all([loadNames(), loadModels()]);
      isLoaded.value = true;
      const all = await Promise.all(
        teams.value.map(async ({ id }) => {
          const [budget, { policy }] = await Promise.all([get<Budget>(`/v1/admin/teams/${id}/budget`), get<{ policy: Policy }>(`/v1/admin/teams/${id}/policy`)]);
          return [id, { budget, policy }] as const;
        }),
      );
      rules.value = Object.fromEntries(all);
      fault.value = "";
    } catch (error) {
      fault.value = words(error);
    }
  };
  useEffect(() => void load(), []);
  const text = search.value.toLowerCase();
  const inUse = keys.value.filter((each) => showsAll.value || each.state === "active" || each.state === "team off");
  const shown = inUse.filter((each) => !text || `${each.name} ${each.team?.name ?? ""} ${each.hint}`.toLowerCase().includes(text));
  const nGone = keys.value.length - keys.value.filter((each) => each.state === "active" || each.state === "team off").length;
  return (
    <section>
      <PageHead title="Keys" lead="Keys, teams and their budgets.">
        <button type="button" onClick={() => (team.value = "new")}>
          <Icon name="plus" /> New team
        </button>
        <button type="button" class="go" onClick={() => (apiKey.value = "new")}>
          <Icon name="plus" /> New key
        </button>
      </PageHead>
      <Alert text={fault.value} />
      <div class="card">
        <h2>Teams</h2>
        {teams.value.length ? (
          <Table label="Teams" columns={teamColumns(rules.value, (each) => (team.value = each))} rows={teams.value} id={(each) => each.id} />
        ) : isLoaded.value ? (
          <Empty icon="keys" title="No teams yet.">
            The keys of a team share its runs and its budget.
          </Empty>
        ) : null}
      </div>
      <div class="card">
        <div class="card-head">
          <h2>Keys</h2>
          <div class="filters">
            {keys.value.length > MANY ? (
              <label>
                <span class="hidden">Search keys</span>
                <input type="search" placeholder="Search keys" value={search.value} onInput={(event) => (search.value = event.currentTarget.value)} />
              </label>
            ) : null}
            {nGone ? (
              <label class="check">
                <input type="checkbox" checked={showsAll.value} onChange={(event) => (showsAll.value = event.currentTarget.checked)} />
                Show revoked and expired
              </label>
            ) : null}
          </div>
        </div>
        {shown.length ? (
          <Table label="Keys" columns={keyColumns((each) => (apiKey.value = each))} rows={shown} id={(each) => each.id} classOf={(each) => (each.state === "active" ? "" : "gone")} />
        ) : isLoaded.value ? (
          <Empty icon="search" title="No key matches." />
        ) : null}
      </div>
      <Ledger />
      {team.value ? <TeamDialog key={team.value === "new" ? "new" : team.value.id} team={team.value === "new" ? null : team.value} onClose={() => (team.value = null)} onSaved={() => void load()} /> : null}
      {apiKey.value ? (
        <KeyDialog key={apiKey.value === "new" ? "new" : apiKey.value.id} apiKey={apiKey.value === "new" ? null : apiKey.value} teams={teams.value} onClose={() => (apiKey.value = null)} onSaved={() => void load()} />
      ) : null}
    </section>
  );
}

function teamColumns(rules: Record<string, Rules>, onEdit: (team: Team) => void): Column<Team>[] {
  return [
    {
      name: "Team",
      main: true,
      cell: (team) => (
        <>
          <strong>{team.name}</strong> {team.enabled ? null : <span class="chip failed">disabled</span>}
        </>
      ),
    },
    { name: "Today", usd: (team) => amountOf(rules[team.id]?.budget.day), cell: (team, most) => <Spending label={`${team.name}, today`} window={rules[team.id]?.budget.day} most={most} /> },
    { name: "This month", usd: (team) => amountOf(rules[team.id]?.budget.month), cell: (team, most) => <Spending label={`${team.name}, this month`} window={rules[team.id]?.budget.month} most={most} /> },
    { name: "Limits", cell: (team) => <Limits of={restrictions(rules[team.id]?.policy ?? {})} /> },
    {
      name: "",
      numeric: true,
      cell: (team) => (
        <button type="button" class="small-button" onClick={() => onEdit(team)}>
          Edit <span class="hidden">{team.name}</span>
        </button>
      ),
    },
  ];
}

function Limits(props: { of: string[] }) {
  if (!props.of.length) return <span class="soft">none</span>;
  return (
    <span class="tags">
      {props.of.slice(0, 3).map((each) => (
        <span key={each} class="tag" title={each}>
          {each}
        </span>
      ))}
      {props.of.length > 3 ? <span class="tag">+{props.of.length - 3}</span> : null}
    </span>
  );
}

function keyColumns(onEdit: (key: ApiKey) => void): Column<ApiKey>[] {
  return [
    {
      name: "Key",
      main: true,
      cell: (key) => (
        <>
          <strong>{key.name}</strong> <code class="soft">…{key.hint}</code>
        </>
      ),
    },
    { name: "Team", cell: (key) => key.team?.name ?? <span class="soft">none</span> },
    {
      name: "May",
      cell: (key) => (
        <span class="tags">
          {key.scopes.map((scope) => (
            <span key={scope} class="tag">
              {scope}
            </span>
          ))}
        </span>
      ),
    },
    { name: "Expires", cell: (key) => (key.expires_at ? <time title={new Date(key.expires_at).toLocaleString()}>{new Date(key.expires_at).toLocaleDateString()}</time> : <span class="soft">never</span>) },
    { name: "Status", cell: (key) => <span class={`chip ${key.state === "active" ? "finished" : "failed"}`}>{key.state === "team off" ? "team disabled" : key.state}</span> },
    {
      name: "",
      numeric: true,
      cell: (key) => (
        <button type="button" class="small-button" onClick={() => onEdit(key)}>
          {key.state === "active" || key.state === "team off" ? "Edit" : "View"} <span class="hidden">{key.name}</span>
        </button>
      ),
    },
  ];
}
