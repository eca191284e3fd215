/// <reference types="vite/client" />
/** The page: its head, and what the address says. */
import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { key, needsKey } from "./api";
import { Ask, Compare, RunPage } from "./ask";
import { Keys } from "./keys";
import { Pool } from "./pool";
import { route } from "./route";
import { Runs } from "./runs";
import "./style.css";

const PAGES: readonly (readonly [string, string])[] = [
  ["ask", "Ask"],
  ["runs", "Runs"],
  ["pool", "Pool"],
  ["keys", "Keys"],
];

function Page() {
  const [name = "", ...rest] = route.value.split("/");
  useEffect(() => {
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
          <a key={path} href={`#/${path}`} aria-current={name === path ? "page" : undefined}>
            {title}
          </a>
        ))}
        <KeyBox />
      </nav>
      <main id="main" tabIndex={-1} key={key.value ? "with key" : "without"}>
        {body()}
      </main>
    </>
  );
}

/** The key of this tab: in memory until the page is left. */
function KeyBox() {
  const text = useSignal("");
  const open = useSignal(false);
  if (!needsKey.value && !open.value)
    return (
      <button type="button" class="plain key" onClick={() => (open.value = true)}>
        {key.value ? "Key is set" : "Use a key"}
      </button>
    );
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault();
        key.value = text.value.trim();
        text.value = "";
        needsKey.value = "";
        open.value = false;
      }}
    >
      <label>
        <span class="small">{needsKey.value || "A key of this server"}</span>
        <input type="password" autocomplete="off" placeholder="pk_…" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      </label>
      <button type="submit">Use it</button>
    </form>
  );
}

render(<Page />, document.getElementById("console")!);
