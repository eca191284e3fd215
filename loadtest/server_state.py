"""State that the server reports during a run: the active runs, and the replicas if the server counts them."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, cast

from loadtest.recording import Recording
from loadtest.request_options import Json

PATHS = ("/readyz", "/v1/replicas")
"""Paths of the JSON objects to poll. `running` is the number of active runs. `replicas` has a number for each
deployment, or an object with `running`.
"""

TIMEOUT_S = 5.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without the environment's proxy, which would distort the measurement."""


def fetch_json(url: str) -> Any:
    """Return the JSON at `url`, whatever the status, unless it is 404. Raise OSError for an incomplete
    answer.
    """
    try:
        with _open(url) as response:
            return json.load(response)
    except HTTPException as exc:  # the answer is cut off or is not HTTP
        raise ConnectionError(f"{type(exc).__name__}: {exc}") from exc


def _open(url: str) -> Any:
    try:
        return DIRECT.open(url, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise
        return error


class Poller:
    """Time series by name: pairs of seconds since the start and the polled number."""

    def __init__(self, url: str, recording: Recording) -> None:
        self.series: dict[str, list[tuple[float, float]]] = {}
        self._url, self._recording = url, recording
        self._paths = list(PATHS)

    def poll(self) -> None:
        """Poll once. A server that does not answer leaves a gap."""
        for path in list(self._paths):
            at_s = round(self._recording.now_s, 3)
            try:
                state = fetch_json(self._url + path)
            except urllib.error.HTTPError:
                self._paths.remove(path)
            except (OSError, ValueError):
                continue
            else:
                for name, number in numbers(state).items():
                    self.series.setdefault(name, []).append((at_s, number))


def numbers(state: Any) -> dict[str, float]:
    """Extract the numbers `active runs`, and `replicas of NAME` for each deployment."""
    result: dict[str, float] = {}
    running = _get(state, "running")
    if isinstance(running, int):
        result["active runs"] = running
    replicas = _get(state, "replicas")
    for name, value in cast(Json, replicas).items() if isinstance(replicas, dict) else ():
        count = _get(value, "running") if isinstance(value, dict) else value
        if isinstance(count, int):
            result[f"replicas of {name}"] = count
    return result


def _get(content: Any, key: str) -> Any:
    return cast(Json, content).get(key) if isinstance(content, dict) else None
