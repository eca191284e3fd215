/// <reference types="vite/client" />
/** The page: its head, and what the address says. */
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

/** The page whose link is marked while one below it is shown. */
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
        To the content
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

/** The key of this tab: in memory until the page is left, or kept for the tab where that is ticked. */
function KeyBox() {
  const text = useSignal("");
  const keeps = useSignal(false);
  const open = useSignal(false);
  if (!needsKey.value && !open.value)
    return (
      <button type="button" class="plain key" onClick={() => (open.value = true)}>
        {key.value ? "Change the key" : "Use a key"}
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
          {needsKey.value || "A key of this server"}
        </span>
        <input type="password" autocomplete="off" spellcheck={false} placeholder="pk_…" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={keeps.value} onChange={(event) => (keeps.value = event.currentTarget.checked)} />
        keep it until this tab is closed
      </label>
      <button type="submit">Use it</button>
    </form>
  );
}

render(<Page />, document.getElementById("console")!);
