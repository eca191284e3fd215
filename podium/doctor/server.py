"""A running server, asked over HTTP: is it Podium, does it let this key in, can it answer, what is down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from podium.client import KEY_VARIABLE, ClientError, connect
from podium.doctor.configuration import compare_clocks
from podium.doctor.finding import Finding, ok, warning, wrong

Json = dict[str, Any]
CLOCK_TOLERANCE_S = 5.0
"""A `Date` header has whole seconds, and an answer takes its time."""
ADMIN = f"put a key with the scope `admin` into {KEY_VARIABLE} to see it"


def check_server(url: str, key: str) -> dict[str, Finding]:
    """What is found about the server at `url`, by check.

    Args:
        url: without a slash at its end.
        key: sent with each request but the first; empty: none is.
    """
    with connect(url, key, timeout_s=10.0) as http:
        found = {"server": check_alive(http, url)}
        if found["server"].level != "wrong":
            checks: Mapping[str, Callable[[httpx2.Client], Finding]] = {
                "key": check_key,
                "ready": check_ready,
                "policies": check_policies,
                "replicas": check_replicas,
                "clock": check_clock,
                "console": check_console,
            }
            for name, check in checks.items():
                try:
                    found[name] = check(http)
                except (httpx2.HTTPError, ValueError) as error:
                    found[name] = wrong(
                        f"{url} gave no answer that can be read: {error}.",
                        f"Look into the server's log; is {url} Podium?",
                    )
        return found


def check_alive(http: httpx2.Client, url: str) -> Finding:
    """A Podium answers."""
    try:
        answer = http.get("/healthz")
        if answer.status_code == 200 and answer.json().get("status") == "ok":
            return ok(f"Podium answers at {url}.")
    except (ValueError, AttributeError):  # no JSON, or no object
        pass
    except (httpx2.HTTPError, ClientError) as error:
        return wrong(
            f"Nothing answers at {url}: {error}.",
            "Start a server with `make serve`, or name another with --url.",
        )
    return wrong(
        f"Something answers at {url}, and not as Podium does.",
        "Name Podium's own address with --url; `podium exposure` lists what listens on this machine.",
    )


def check_key(http: httpx2.Client) -> Finding:
    """The key is let in."""
    answer = http.get("/v1/models")
    has_key = "authorization" in http.headers
    if answer.status_code == 401:
        said = (
            "The server does not know the key" if has_key else "The server asks for a key, and none is sent"
        )
        return wrong(
            f"{said} ({KEY_VARIABLE}).",
            f"`podium keys list --all` says which are in force; `export {KEY_VARIABLE}=$(podium keys create NAME)` makes one.",
        )
    if answer.status_code >= 400:
        return wrong(
            f"The server answers {answer.status_code}: {_message(answer)}", "Its message says what to do."
        )
    return ok(
        f"{'The key is let in' if has_key else 'No key is needed here'}; {len(answer.json()['data'])} names can be asked."
    )


def check_ready(http: httpx2.Client) -> Finding:
    """The server can answer, with its conductor, its engines and its store."""
    said: Json = http.get("/readyz").json()
    if said.get("store") == "away":
        return wrong(
            "The server's database is away: what needs a budget is refused.",
            "Start the database; the server goes on by itself. docs/operations/store.md says what works meanwhile.",
        )
    if refused := said.get("refused_user_config"):
        return wrong(
            f"The server has refused new settings and goes on with those before: {refused}.",
            "Correct the settings and send them again.",
        )
    return _readiness(said)


def _readiness(said: Json) -> Finding:
    waiting = ", ".join(said.get("waiting_for", ()))
    if failing := _failing(said):
        words = (
            "The server answers, but not as it should"
            if said.get("status") == "degraded"
            else "The server cannot answer"
        )
        make = warning if said.get("status") == "degraded" else wrong
        shown = (
            ""
            if any("detail" in (each.get("first") or {}) for each in said["failing"])
            else f" For all that is known, {ADMIN}."
        )
        return make(
            f"{words}: {failing}",
            f"Correct what the first error names; the worker's next whole answer ends this.{shown}",
        )
    conductor: Json = said.get("conductor") or {}
    match said.get("status"):
        case "ready":
            return ok("The server is ready.")
        case "starting":
            return warning(
                f"The server is starting{f', and waits for {waiting}' if waiting else ''}.",
                "Wait: a large model takes minutes. build/serve-PORT.log says how far it is.",
            )
        case "degraded":
            why = (
                f"the conductor {conductor['worker']} does not plan ({conductor.get('reason')})"
                if conductor
                else f"{waiting or 'a worker'} is down"
            )
            return warning(
                f"The server answers, and {why}.",
                "`podium runs --status failed` and the log of that worker say why; `podium show ID` has its errors.",
            )
        case other:
            return wrong(
                f"The server cannot answer ({other}); down: {waiting or 'every worker'}.",
                "Its log says why engines ended: out of memory, a model that is not there, a GPU that is gone.",
            )


def _failing(said: Json) -> str:
    """Return which workers fail, why and since when; empty if none does, or the server does not say."""
    lines: list[str] = []
    planner: Json = said.get("conductor") or {}
    failing: list[Json] = said.get("failing") or []
    conductor = planner.get("worker")
    for each in failing:
        who = f"{each['worker']} (the conductor)" if each["worker"] == conductor else each["worker"]
        first, newest = each.get("first"), each.get("newest")
        if first is None:
            lines.append(f"{who} fails at another router.")
            continue
        since = f" since {each['since']}, {each['failures_in_a_row']} times in a row"
        then = f" Then {_words(newest)}" if newest and _words(newest) != _words(first) else ""
        lines.append(f"{who} fails{since}: {_words(first)}{then}")
    if conductor and not any(each["worker"] == conductor for each in failing) and lines:
        lines.insert(0, f"the conductor {conductor} does not plan ({planner.get('reason')}).")
    return " ".join(lines)


def _words(fault: Json) -> str:
    told = [fault[name] for name in ("message", "detail") if fault.get(name)]
    return f"{fault['error']}{':' if told else ''} {' '.join(told)}".rstrip()


def check_policies(http: httpx2.Client) -> Finding:
    """Policies of teams and keys name only what the settings have."""
    faults: list[str] = http.get("/readyz").json().get("policies", [])
    if not faults:
        return ok("No policy is known to name what the settings do not have.")
    return warning(
        f"Policies name what the settings do not have: {' '.join(faults)}",
        "Correct them: `podium keys policy KEY FIELD=VALUE`, `podium teams policy TEAM FIELD=VALUE`.",
    )


def check_replicas(http: httpx2.Client) -> Finding:
    """Each deployment has its replicas."""
    answer = http.get("/v1/replicas")
    if answer.status_code in (401, 403):
        return ok(f"Replicas are for operators: {ADMIN}.")
    replicas: dict[str, dict[str, int]] = answer.json()["replicas"]
    down = [name for name, states in replicas.items() if states and not states.get("running")]
    if down:
        return wrong(
            f"No replica runs of {', '.join(down)}.",
            "`serve status` and Ray's log of the deployment say why; does the cluster have the CPUs and GPUs that it asks for (`ray status`)?",
        )
    return ok("Every deployment has a replica that runs.")


def check_clock(http: httpx2.Client) -> Finding:
    """This machine and the server agree about the time."""
    began_s = time.time()
    answer = http.get("/healthz")
    here_s = (began_s + time.time()) / 2
    date = answer.headers.get("date")
    if date is None:
        return ok("The server does not say what time it is.")
    return compare_clocks(
        parsedate_to_datetime(date).timestamp() + 0.5 - here_s, "the server", CLOCK_TOLERANCE_S
    )


def check_console(http: httpx2.Client) -> Finding:
    """The web console is there."""
    if http.get("/console/").status_code == 200:
        return ok("The web console is there.")
    return warning(
        "The server has no web console; everything else works.",
        "`make console` on its machine builds it; the server shows it without a restart.",
    )


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason is given."
