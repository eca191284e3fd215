"""What the server reports about itself during a run: active runs, and replicas where it counts them."""

import json
import urllib.error
import urllib.request
from typing import Any, cast

from loadtest.recording import Recording
from loadtest.request_options import Json

PATHS = ("/readyz", "/v1/replicas")
"""JSON objects that are polled; one that does not exist is not asked for again.

`running` in them is a number of runs; `replicas` an object of numbers by deployment, or of objects with a
number `running`.
"""

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the environment's proxy, which would be part of the measurement; the loops use none either."""


def fetch_json(url: str, timeout_s: float = 5.0) -> Any:
    """The JSON at `url`, whatever its status.

    Raises:
        OSError: no answer, or 404.
        ValueError: it is not JSON.
    """
    try:
        with DIRECT.open(url, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise
        return json.load(error)


class Poller:
    """Series of what was read, by name: `(seconds since the run began, number)`."""

    def __init__(self, url: str, recording: Recording) -> None:
        self.series: dict[str, list[tuple[float, float]]] = {}
        self._url, self._recording = url, recording
        self._paths = list(PATHS)

    def poll(self) -> None:
        """Ask once; a server that does not answer just now leaves a gap."""
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
    """`active runs`, and `replicas of NAME` for each deployment in it."""
    found: dict[str, float] = {}
    running = _get(state, "running")
    if isinstance(running, int):
        found["active runs"] = running
    replicas = _get(state, "replicas")
    for name, value in cast(Json, replicas).items() if isinstance(replicas, dict) else ():
        count = _get(value, "running") if isinstance(value, dict) else value
        if isinstance(count, int):
            found[f"replicas of {name}"] = count
    return found


def _get(content: Any, key: str) -> Any:
    return cast(Json, content).get(key) if isinstance(content, dict) else None
