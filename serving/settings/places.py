"""Places to which a worker's prompts are sent: provider, region, and whether they leave your own machines."""

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
    """Place that a call is sent to.

    Args:
        provider: name of the provider.
        region: name of the region, or None if unknown.
        is_local: whether nothing leaves your own machines.
    """

    provider: str
    region: str | None
    is_local: bool


def places_reached(worker: WorkerSettings) -> list[Place]:
    """Return every place that a call to `worker` can be sent to, one for each deployment. Its fallbacks are
    separate workers.
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
