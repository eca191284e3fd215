"""Check a running server over HTTP: whether it is Podium, accepts the key and can answer."""

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
"""Maximum difference from the server's clock. A `Date` header has whole seconds, and takes time."""
ADMIN = f"set {KEY_VARIABLE} to a key with the scope `admin`"


def check_server(url: str, key: str) -> dict[str, Finding]:
    """Run all checks of the server at the base URL with an API key or "". Return the findings by check."""
    with connect(url, key, timeout_s=10.0) as http:
        findings = {"server": check_alive(http, url)}
        if findings["server"].level != "wrong":
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
                    findings[name] = check(http)
                except (httpx2.HTTPError, ValueError) as error:
                    findings[name] = wrong(
                        f"The response of {url} cannot be read: {error}.",
                        f"Check the server's log, and check that {url} is a Podium server.",
                    )
        return findings


def check_alive(http: httpx2.Client, url: str) -> Finding:
    """Check that a server answers at `url`, and that it is Podium."""
    try:
        answer = http.get("/healthz")
        if answer.status_code == 200 and answer.json().get("status") == "ok":
            return ok(f"Podium answers at {url}.")
    except (ValueError, AttributeError):  # not JSON, or not an object
        pass
    except (httpx2.HTTPError, ClientError) as error:
        return wrong(
            f"Cannot connect to {url}: {error}.", "Start a server with `podium serve`, or set --url."
        )
    return wrong(
        f"The server at {url} is not Podium.",
        "Set --url to the address of Podium. `podium exposure` lists Podium's open ports on this machine.",
    )


def check_key(http: httpx2.Client) -> Finding:
    answer = http.get("/v1/models")
    has_key = "authorization" in http.headers
    if answer.status_code == 401:
        message = (
            "The server rejected the API key"
            if has_key
            else "The server requires an API key, but none is set"
        )
        return wrong(
            f"{message} ({KEY_VARIABLE}).",
            f"List all keys with `podium keys list --all`, or create one with `export {KEY_VARIABLE}=$(podium keys create NAME)`.",
        )
    if answer.status_code >= 400:
        return wrong(
            f"The server returned status {answer.status_code}: {_message(answer)}",
            "Follow the server's message.",
        )
    return ok(
        f"{'The API key is valid' if has_key else 'The server requires no API key'}. Available models: {len(answer.json()['data'])}."
    )


def check_ready(http: httpx2.Client) -> Finding:
    """Check that the server is ready, with its conductor, engines and store."""
    state: Json = http.get("/readyz").json()
    if state.get("store") == "away":
        return wrong(
            "The server's database is unreachable. The server rejects requests that need a budget.",
            "Start the database. The server reconnects by itself. docs/operations/store.md describes what works until then.",
        )
    if refused := state.get("refused_user_config"):
        return wrong(
            f"The server rejected new settings and still uses the previous ones: {refused}.",
            "Correct the settings and deploy them again.",
        )
    return _readiness(state)


def _readiness(state: Json) -> Finding:
    waiting = ", ".join(state.get("waiting_for", ()))
    if failing := _failing(state):
        words = (
            "The server answers, but is degraded"
            if state.get("status") == "degraded"
            else "The server cannot answer"
        )
        make = warning if state.get("status") == "degraded" else wrong
        shown = (
            ""
            if any("detail" in (each.get("first") or {}) for each in state["failing"])
            else f" To see details, {ADMIN}."
        )
        return make(
            f"{words}: {failing}",
            f"Fix the cause that the first error names. The worker recovers with its next complete answer.{shown}",
        )
    conductor: Json = state.get("conductor") or {}
    match state.get("status"):
        case "ready":
            return ok("The server is ready.")
        case "starting":
            return warning(
                f"The server is starting{f' and is waiting for {waiting}' if waiting else ''}.",
                "Wait until it is ready. A large model takes minutes. build/serve-PORT.log shows the progress.",
            )
        case "degraded":
            why = (
                f"the conductor {conductor['worker']} writes no plans ({conductor.get('reason')})"
                if conductor
                else f"{waiting or 'a worker'} is down"
            )
            return warning(
                f"The server answers, but {why}.",
                "See `podium runs --status failed`, `podium show ID` and the log of that worker for the cause.",
            )
        case other:
            return wrong(
                f"The server cannot answer ({other}). Workers that are down: {waiting or 'all'}.",
                "See the server's log for the cause, such as too little memory, a missing model or a lost GPU.",
            )


def _failing(state: Json) -> str:
    """Describe which workers fail, why and since when, or return "" if none is known to."""
    lines: list[str] = []
    planner: Json = state.get("conductor") or {}
    failing: list[Json] = state.get("failing") or []
    conductor = planner.get("worker")
    for each in failing:
        who = f"{each['worker']} (the conductor)" if each["worker"] == conductor else each["worker"]
        first, newest = each.get("first"), each.get("newest")
        if first is None:
            lines.append(f"{who} fails on another router.")
            continue
        since = f" since {each['since']}, {each['failures_in_a_row']} times in a row"
        then = f" Then {_words(newest)}" if newest and _words(newest) != _words(first) else ""
        lines.append(f"{who} fails{since}: {_words(first)}{then}")
    if conductor and not any(each["worker"] == conductor for each in failing) and lines:
        lines.insert(0, f"the conductor {conductor} writes no plans ({planner.get('reason')}).")
    return " ".join(lines)


def _words(fault: Json) -> str:
    details = [fault[name] for name in ("message", "detail") if fault.get(name)]
    return f"{fault['error']}{':' if details else ''} {' '.join(details)}".rstrip()


def check_policies(http: httpx2.Client) -> Finding:
    """Check that the settings have every name in the policies of teams and keys."""
    faults: list[str] = http.get("/readyz").json().get("policies", [])
    if not faults:
        return ok("All names in policies exist in the settings.")
    return warning(
        f"Policies contain names that the settings do not have: {' '.join(faults)}",
        "Correct them with `podium keys policy KEY FIELD=VALUE` or `podium teams policy TEAM FIELD=VALUE`.",
    )


def check_replicas(http: httpx2.Client) -> Finding:
    """Check that each deployment has a running replica."""
    answer = http.get("/v1/replicas")
    if answer.status_code in (401, 403):
        return ok(f"Not checked, because only operators may see replicas. To check them, {ADMIN}.")
    replicas: dict[str, dict[str, int]] = answer.json()["replicas"]
    down = [name for name, states in replicas.items() if states and not states.get("running")]
    if down:
        return wrong(
            f"Deployments without a running replica: {', '.join(down)}.",
            "See `serve status` and the deployment's log. Check with `ray status` that the cluster has enough CPUs and GPUs.",
        )
    return ok("Every deployment has a running replica.")


def check_clock(http: httpx2.Client) -> Finding:
    """Check that the clocks of this machine and the server agree."""
    began_s = time.time()
    answer = http.get("/healthz")
    here_s = (began_s + time.time()) / 2
    date = answer.headers.get("date")
    if date is None:
        return ok("Not checked, because the server sends no `Date` header.")
    return compare_clocks(
        parsedate_to_datetime(date).timestamp() + 0.5 - here_s, "the server", CLOCK_TOLERANCE_S
    )


def check_console(http: httpx2.Client) -> Finding:
    """Check that the server provides the web console."""
    if http.get("/console/").status_code == 200:
        return ok("The web console is available.")
    return warning(
        "The server has no web console. Everything else works.",
        "Run `make console` on the server's machine. The server does not need a restart.",
    )


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given."
