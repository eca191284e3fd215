"""Where what a worker is sent goes: who runs it, in which region, and whether it leaves one's own machines."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from serving.settings.workers import (
    API_SETTINGS,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call goes.

    Args:
        provider: who runs it.
        region: where; None: nobody said.
        is_local: whether nothing leaves one's own machines.
    """

    provider: str
    region: str | None
    is_local: bool


def places_reached(worker: WorkerSettings) -> list[Place]:
    """Every place that a call of `worker` itself can go to, each of its deployments; its fallbacks are workers of
    their own.
    """
    return [
        Place(each.provider or each.kind, each.region, _is_local(each)) for each in places_of(worker).values()
    ]


def _is_local(worker: WorkerSettings) -> bool:
    if worker.local is not None:
        return worker.local
    if isinstance(worker, API_SETTINGS):
        return worker.base_url is not None and _is_this_machine(worker.base_url)
    return isinstance(worker, VllmSettings | ScriptedSettings)


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
