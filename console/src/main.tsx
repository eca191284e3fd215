/// <reference types="vite/client" />
/** Frame of the console: the navigation, and the page that the URL names. */
import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { key, keyChanges, needsKey, useKey } from "./api";
import { Ask, Compare, RunPage } from "./ask";
import { Evaluation } from "./evaluation";
import { Keys } from "./keys";
import { Pool } from "./pool";
import { route } from "./route";
import { Runs } from "./runs";
import "./style.css";

const PAGES: readonly (readonly [string, string])[] = [
  ["ask", "Ask"],
  ["runs", "Runs"],
  ["pool", "Pool"],
  ["evaluation", "Compare"],
  ["keys", "Keys"],
];

/** Navigation link that is marked while a page without its own link is shown. */
const PARENTS: Record<string, string> = { again: "ask", compare: "runs" };

function Page() {
  const [name = "", ...rest] = route.value.split("/");
  useEffect(() => {
    document.title = `${PAGES.find(([path]) => path === name)?.[1] ?? "Run"} · Podium`;
    document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
  }, [route.value]);
  const body = () => {
    switch (name) {
      case "runs":
        return rest[0] ? <RunPage key={rest[0]} id={rest[0]} /> : <Runs />;
      case "compare":
        return <Compare key={rest.join()} ids={rest} />;
      case "again":
        return <Ask key={rest[0] ?? ""} from={rest[0] ?? null} />;
      case "pool":
        return <Pool />;
      case "evaluation":
        return <Evaluation />;
      case "keys":
        return <Keys />;
      default:
        return <Ask key="ask" from={null} />;
    }
  };
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <nav aria-label="Pages">
        <span class="brand">Podium</span>
        {PAGES.map(([path, title]) => (
          <a key={path} href={`#/${path}`} aria-current={(PARENTS[name] ?? name) === path ? "page" : undefined}>
            {title}
          </a>
        ))}
        <KeyBox />
      </nav>
      <main id="main" tabIndex={-1} key={keyChanges.value}>
        {body()}
      </main>
    </>
  );
}

/** Field for the API key. The key stays in memory, or until the tab is closed if the user chooses so. */
function KeyBox() {
  const text = useSignal("");
  const keeps = useSignal(false);
  const open = useSignal(false);
  if (!needsKey.value && !open.value)
    return (
      <button type="button" class="plain key" onClick={() => (open.value = true)}>
        {key.value ? "Change API key" : "Enter API key"}
      </button>
    );
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault();
        useKey(text.value, keeps.value);
        text.value = "";
        open.value = false;
      }}
    >
      <label>
        <span class="small" role={needsKey.value ? "alert" : undefined}>
          {needsKey.value || "API key for this server"}
        </span>
        <input type="password" autocomplete="off" spellcheck={false} placeholder="pk_…" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={keeps.value} onChange={(event) => (keeps.value = event.currentTarget.checked)} />
        Keep the key until this tab is closed
      </label>
      <button type="submit">Use key</button>
    </form>
  );
}

render(<Page />, document.getElementById("console")!);
