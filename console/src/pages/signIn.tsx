/** Start page: the field for the API key, or the reason why the server does not answer. */
import { useSignal } from "@preact/signals";
import { access, type ApiKey, identify, myKey, type Scope } from "../data/access";
import { key, useKey } from "../data/api";
import { Alert, Copy, Dialog, Empty, Form } from "../parts/ui";

const CREATE = "podium keys create NAME --scopes admin";

export function SignIn(props: { message: string }) {
  return (
    <section class="card sign-in">
      <h1>Sign in to this server</h1>
      <p class="lead">An API key is required. The page sends it only to this server. It keeps the key in memory, or until this tab is closed if you choose so.</p>
      <KeyForm message={props.message} />
      <details>
        <summary>I have no key</summary>
        <p>Ask an administrator of this server. If it has no keys yet, create the first one on its machine:</p>
        <p class="command">
          <code>{CREATE}</code> <Copy text={CREATE} name="the command" />
        </p>
      </details>
    </section>
  );
}

export function Away(props: { message: string }) {
  return (
    <Empty
      icon="lock"
      title="The server does not answer"
      action={
        <button type="button" onClick={() => void identify()}>
          Try again
        </button>
      }
    >
      <p role="alert">{props.message}</p>
    </Empty>
  );
}

/** Field for the API key. The key stays in memory, or until the tab is closed if the user chooses so. */
function KeyForm(props: { message: string; onDone?: () => void }) {
  const text = useSignal("");
  const keeps = useSignal(false);
  const busy = useSignal(false);
  const submit = async () => {
    busy.value = true;
    useKey(text.value, keeps.value);
    await identify();
    busy.value = false;
    if (access.value.state === "open") props.onDone?.();
  };
  return (
    <Form class="key fields" onSubmit={() => void (text.value.trim() && submit())}>
      <label>
        API key
        <input type="password" autocomplete="off" spellcheck={false} placeholder="pk_…" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={keeps.value} onChange={(event) => (keeps.value = event.currentTarget.checked)} />
        Keep the key until this tab is closed
      </label>
      <Alert text={props.message} />
      <p class="buttons">
        <button type="submit" class="go" disabled={busy.value || !text.value.trim()}>
          Use key
        </button>
      </p>
    </Form>
  );
}

/** The key in use, and a field for another one. */
export function KeyDialog(props: { onClose: () => void }) {
  const mine = myKey();
  const forget = () => {
    useKey("", false);
    void identify();
  };
  return (
    <Dialog title={mine ? "Your API key" : "No key needed"} onClose={props.onClose}>
      {(close) => (
        <>
          {mine ? <KeyFacts of={mine} /> : <p>This server has no API keys yet, so it accepts every request from this machine, and none from others.</p>}
          {mine || key.value ? (
            <>
              <h3>Use another key</h3>
              <KeyForm message="" onDone={close} />
              <p class="buttons">
                <button type="button" onClick={forget}>
                  Sign out
                </button>
              </p>
            </>
          ) : (
            <>
              <p>Create the first key on this machine. From then on, every request needs one:</p>
              <p class="command">
                <code>{CREATE}</code> <Copy text={CREATE} name="the command" />
              </p>
            </>
          )}
        </>
      )}
    </Dialog>
  );
}

const MEANINGS: readonly (readonly [Scope, string])[] = [
  ["run", "send requests"],
  ["read", "read its team’s runs"],
  ["admin", "manage teams and keys, and read all runs"],
];

/** Name, team and scopes of a key. */
export function KeyFacts(props: { of: ApiKey }) {
  const mine = props.of;
  const can = (scope: Scope) => mine.scopes.includes(scope) || mine.scopes.includes("admin");
  return (
    <dl class="facts-list">
      <div>
        <dt>Name</dt>
        <dd>
          {mine.name} <span class="soft">…{mine.hint}</span>
        </dd>
      </div>
      <div>
        <dt>Team</dt>
        <dd>{mine.team?.name ?? "none"}</dd>
      </div>
      <div>
        <dt>It may</dt>
        <dd>
          <ul class="rights">
            {MEANINGS.map(([scope, meaning]) => (
              <li key={scope} class={can(scope) ? "yes" : "no"}>
                <span aria-hidden="true">{can(scope) ? "✓" : "–"}</span> <span class="hidden">{can(scope) ? "yes: " : "no: "}</span>
                {meaning}
              </li>
            ))}
          </ul>
        </dd>
      </div>
      <div>
        <dt>Expires</dt>
        <dd>{mine.expires_at ? new Date(mine.expires_at).toLocaleString() : "never"}</dd>
      </div>
    </dl>
  );
}
