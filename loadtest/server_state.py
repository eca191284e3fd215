"""What the server tells of itself while it is loaded: runs under way, and replicas where it counts them."""

import json
import urllib.error
import urllib.request
from typing import Any

from loadtest.recording import Recording

PATHS = ("/readyz", "/v1/replicas")
"""JSON objects that are looked at; one that is not there is not asked for again.

`running` in them is a number of runs; `replicas` an object of numbers by deployment, or of objects with a number `running`.
"""

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy between would be part of what is measured; the loops take none either."""


def fetched(url: str, timeout_s: float = 5.0) -> Any:
    """The JSON at `url`, whatever its status is.

    Raises:
        OSError: nobody answers.
        ValueError: it is no JSON.
    """
    try:
        with DIRECT.open(url, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:
        if refused.code == 404:
            raise
        return json.load(refused)


class Poller:
    """Series of what was seen, by name: `(seconds since the run began, number)`."""

    def __init__(self, url: str, recording: Recording) -> None:
        self.series: dict[str, list[tuple[float, float]]] = {}
        self._url, self._recording = url, recording
        self._paths = list(PATHS)

    def look(self) -> None:
        """Ask once; a server that does not answer just now leaves a gap."""
        for path in list(self._paths):
            at_s = round(self._recording.now_s, 3)
            try:
                told = fetched(self._url + path)
            except urllib.error.HTTPError:
                self._paths.remove(path)
            except (OSError, ValueError):
                continue
            else:
                for name, number in numbers(told).items():
                    self.series.setdefault(name, []).append((at_s, number))


def numbers(told: Any) -> dict[str, float]:
    """`runs under way`, and `replicas of NAME` for each deployment that is told of."""
    found: dict[str, float] = {}
    if not isinstance(told, dict):
        return found
    if isinstance(told.get("running"), int):
        found["runs under way"] = told["running"]
    replicas = told.get("replicas")
    for name, value in replicas.items() if isinstance(replicas, dict) else ():
        count = value.get("running") if isinstance(value, dict) else value
        if isinstance(count, int):
            found[f"replicas of {name}"] = count
    return found
