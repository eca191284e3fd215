"""What is to be served: the keys of providers, and the store. The store is read, never made or migrated."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import TYPE_CHECKING

from podium.doctor.finding import Finding, ServerCase, ok, warning, worst, wrong

if TYPE_CHECKING:
    from serving.database.address import Address
    from serving.settings.keys import ApiSettings

FORMS = {"openai": r"sk-(?!ant-)[\w-]{20,}", "anthropic": r"sk-ant-[\w-]{20,}", "gemini": r"[\w.-]{30,}"}
"""How keys of each provider look."""
OWNERS = {
    "sk-ant-": "Anthropic",
    "sk-": "OpenAI",
    "AIza": "Google",
    "gsk_": "Groq",
    "xai-": "xAI",
    "pk_": "Podium",
}
"""Whose key begins so."""
HOMES = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Google"}
FAR_S = 2.0
"""Budgets, leases of runs and expiring keys are told by clocks that should be this near to each other."""


def check_keys(case: ServerCase) -> Finding:
    """Each provider's key is there and looks like one. No provider is asked."""
    from serving.settings.workers import API_SETTINGS, places_of

    places = [place for worker in case.settings.workers for place in places_of(worker).values()]
    findings = [_key(place, case) for place in places if isinstance(place, API_SETTINGS)]
    return worst(findings) if findings else ok("The settings name no provider.")


def check_workers(case: ServerCase) -> Finding:
    """Every worker can be made: its plugin, library and credentials are here; so is the secret of the webhooks."""
    from cluster.local.processes import ROOT
    from serving.clients import find_faults
    from serving.settings.faults import in_file

    if str(ROOT) not in sys.path:  # it is where the server runs
        sys.path.append(str(ROOT))
    faults = asyncio.run(find_faults(case.settings, case.environment))
    if not faults:
        return ok("Every worker can be made.")
    findings: list[Finding] = []
    for fault in faults:
        placed = in_file(fault, case.path)
        said, _, remedy = f"{placed.message} {placed.detail}".strip().partition(". ")
        findings.append(wrong(f"{said.rstrip('.')}.", remedy or f"Correct it in {case.path}."))
    return worst(findings)


def check_effect(case: ServerCase) -> Finding:
    """Every setting that asks for something can get it."""
    from serving.settings.absent import absent_workers, without_workers
    from serving.settings.settings import SettingsError
    from serving.settings.without_effect import without_effect

    settings = case.settings
    try:
        settings = without_workers(settings, set(absent_workers(settings, case.environment)))
    except SettingsError:
        return ok("Which workers are left is not known; `keys` says why.")
    idle = [warning(each.said, each.remedy) for each in without_effect(settings)]
    return worst(idle) if idle else ok("No setting is without effect.")


def check_store(case: ServerCase) -> Finding:
    """The store answers, and has this version's schema."""
    from conductor.errors import PodiumError
    from serving.database.address import StoreError, find_address
    from serving.database.migrate import check_version

    try:
        address = find_address(case.settings.store, case.environment)
        if address.kind == "sqlite" and not address.may_hold_something:
            return ok(f"The store will be made at the first start: {address.name}.")
        return ok(f"The store {address.name} has schema {asyncio.run(check_version(address))}.")
    except StoreError as error:  # its message says what to do
        said, _, remedy = f"{error.message} {error.detail}".strip().partition(". ")
        return wrong(f"{said.rstrip('.')}.", remedy or f"See the variable {case.settings.store.url_env}.")
    except PodiumError as error:
        return wrong(
            f"{error.message} {error.detail}".strip(),
            f"Start the database, or correct the variable {case.settings.store.url_env}; unset, the store is a SQLite file.",
        )


def check_clock(case: ServerCase) -> Finding:
    """This machine and the database agree about the time."""
    from conductor.errors import PodiumError
    from serving.database.address import find_address

    try:
        address = find_address(case.settings.store, case.environment)
        if address.kind == "sqlite":
            return ok("The store is on this machine, by whose clock it goes.")
        return compare_clocks(asyncio.run(_ahead_s(address)), f"the database {address.name}")
    except PodiumError:
        return ok("The database's clock cannot be read; `store` says why.")


def compare_clocks(ahead_s: float, whose: str, tolerance_s: float = FAR_S) -> Finding:
    """Whether a clock that is `ahead_s` of this machine's is near enough.

    Args:
        ahead_s: negative where it is behind.
        whose: that clock.
        tolerance_s: how far apart they may be.
    """
    if abs(ahead_s) <= tolerance_s:
        return ok(f"The clock agrees with that of {whose} within {tolerance_s:.0f} s.")
    way = "behind" if ahead_s > 0 else "ahead of"
    said = f"The clock of this machine is {abs(ahead_s):.0f} s {way} that of {whose}: keys, budgets and leases of runs end at the wrong time."
    return wrong(
        said,
        "`timedatectl set-ntp true` (or chrony) on both machines; in a container the host's clock is meant.",
    )


async def _ahead_s(address: Address) -> float:
    from serving.database.clock import read_clock_s

    began_s = time.time()
    there_s = await read_clock_s(address)
    return there_s - (began_s + time.time()) / 2


def _key(worker: ApiSettings, case: ServerCase) -> Finding:
    """Whether a worker has its key."""
    from serving.settings.faults import SettingsError, in_file
    from serving.settings.keys import KeyFileError, read_key

    place = f"variable {worker.api_key_env}" if worker.api_key_env else f"file {worker.api_key_file}"
    if worker.api_key_env is None and worker.api_key_file is None:
        return ok(f"{worker.name} is asked without a key.")
    try:
        key = read_key(worker, case.environment)
    except KeyFileError as error:
        said, _, remedy = str(error).partition(". ")
        return wrong(f"{said.rstrip('.')}.", remedy or "Write the key alone.")
    if key is None:
        field = "api_key_env" if worker.api_key_env else "api_key_file"
        said = f"{worker.name} has no key: the {place} is not set."
        said = in_file(SettingsError(said, at=("workers", worker.name, field)), case.path).message
        if worker.optional:
            return ok(f"{said} It is left out.")
        return wrong(said, f"Set the {place}, or write `optional: true` to serve without {worker.name}.")
    return _form(worker, key, place)


def _form(worker: ApiSettings, key: str, place: str) -> Finding:
    """Whether a key looks like the provider's. What it is, is not shown."""
    remedy = f"Put the provider's key for {worker.name} there, without quotes or blanks."
    if re.search(r"[\s\"'<>]", key) or len(key) < 8:
        return wrong(
            f"The {place} holds no key: a blank, a quote or a placeholder, or too few characters.", remedy
        )
    home = worker.base_url is None and getattr(worker, "service", None) is None
    if not home or re.fullmatch(FORMS[worker.kind], key):
        return ok(f"{worker.name} has a key of the right form.")
    owner = next((name for start, name in OWNERS.items() if key.startswith(start)), None)
    if owner and owner != HOMES[worker.kind]:
        return wrong(
            f"The {place} holds a key of {owner}, and {worker.name} is asked at {HOMES[worker.kind]}.", remedy
        )
    return warning(f"The {place} does not look like a key of {HOMES[worker.kind]}.", remedy)
