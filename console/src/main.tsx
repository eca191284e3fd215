/// <reference types="vite/client" />
/** Frame of the console: the navigation, and the page that the URL names. */
import { useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { access, identify, keyChanges, myKey } from "./data/access";
import { parts } from "./data/route";
import { THEMES, type Theme, chooseTheme, theme } from "./data/theme";
import { Ask, Compare } from "./pages/ask";
import { Costs } from "./pages/costs";
import { Evaluation } from "./pages/evaluation";
import { Keys } from "./pages/keys";
import { Overview } from "./pages/overview";
import { Pool } from "./pages/pool";
import { RunView } from "./pages/run";
import { Runs } from "./pages/runs";
import { Away, KeyDialog, SignIn } from "./pages/signIn";
import { Icon, type IconName, Mark } from "./parts/icons";
import "./style.css";

const PAGES: readonly (readonly [IconName, string, string])[] = [
  ["ask", "ask", "Ask"],
  ["runs", "runs", "Runs"],
  ["overview", "overview", "Overview"],
  ["costs", "costs", "Costs"],
  ["pool", "pool", "Pool"],
  ["compare", "evaluation", "Compare"],
  ["keys", "keys", "Keys"],
];

/** Navigation link that is marked while a page without its own link is shown. */
const PARENTS: Record<string, string> = { again: "ask", compare: "runs" };

function Page() {
  const [name = "", ...rest] = parts();
  const shown = PARENTS[name] ?? name;
  // A question on the page Ask adds the run to the address, but the page stays.
  const place = name === "ask" ? name : [name, ...rest].join("/");
  useEffect(() => {
    document.title = `${PAGES.find(([, path]) => path === shown)?.[2] ?? "Ask"} · Podium`;
    document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [place]);
  const isOpen = access.value.state === "open";
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault(); // the address names the page
          document.querySelector<HTMLElement>("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="side">
        <a class="brand" href="#/ask">
          <Mark /> Podium
        </a>
        {isOpen ? (
          <nav aria-label="Pages">
            {PAGES.map(([icon, path, title]) => (
              <a key={path} href={`#/${path}`} aria-current={shown === path ? "page" : undefined}>
                <Icon name={icon} />
                {title}
              </a>
            ))}
          </nav>
        ) : null}
        <div class="side-foot">
          {isOpen ? <Who /> : null}
          <ThemeButton />
        </div>
      </header>
      <main id="main" tabIndex={-1} class={shown === "ask" || shown === "runs" ? "full" : undefined} key={keyChanges.value}>
        <Body name={name} rest={rest} />
      </main>
    </>
  );
}

function Body(props: { name: string; rest: string[] }) {
  const { name, rest } = props;
  switch (access.value.state) {
    case "loading":
      return <p role="status">Connecting to the server…</p>;
    case "away":
      return <Away message={access.value.message} />;
    case "locked":
      return <SignIn message={access.value.message} />;
  }
  switch (name) {
    case "runs":
      return rest[0] ? <RunView key={rest[0]} id={rest[0]} /> : <Runs />;
    case "compare":
      return <Compare key={rest.join()} ids={rest} />;
    case "again":
      return <Ask key={rest[0] ?? ""} from={rest[0] ?? null} run={null} />;
    case "overview":
      return <Overview />;
    case "costs":
      return <Costs />;
    case "pool":
      return <Pool />;
    case "evaluation":
      return <Evaluation />;
    case "keys":
      return <Keys />;
    default:
      return <Ask key="ask" from={null} run={name === "ask" ? (rest[0] ?? null) : null} />;
  }
}

/** Whose key the page uses, and a dialog to use another one. */
function Who() {
  const open = useSignal(false);
  const mine = myKey();
  return (
    <>
      <button type="button" class="who" onClick={() => (open.value = true)}>
        <Icon name={mine ? "user" : "lock"} />
        <span>
          {mine ? mine.name : "No key needed"}
          <small>{mine ? (mine.team?.name ?? (mine.scopes.includes("admin") ? "administrator" : "no team")) : "local server"}</small>
        </span>
      </button>
      {open.value ? <KeyDialog onClose={() => (open.value = false)} /> : null}
    </>
  );
}

const THEME_NAMES: Record<Theme, string> = { auto: "as the system", light: "light", dark: "dark" };
const THEME_ICONS: Record<Theme, IconName> = { auto: "auto", light: "sun", dark: "moon" };

function ThemeButton() {
  const next = () => THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
  return (
    <button type="button" class="plain icon-button" title={`Colours: ${THEME_NAMES[theme.value]}`} aria-label={`Colours: ${THEME_NAMES[theme.value]}. Change to ${THEME_NAMES[next()]}`} onClick={() => chooseTheme(next())}>
      <Icon name={THEME_ICONS[theme.value]} />
    </button>
  );
}

void identify();
render(<Page />, document.getElementById("console")!);
