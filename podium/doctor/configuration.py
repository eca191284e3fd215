"""Check the settings to serve: provider keys, workers and the store.

The checks read the store but never create or migrate it.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import TYPE_CHECKING

from podium.doctor.finding import Finding, ServerCase, ok, warning, worst, wrong

if TYPE_CHECKING:
    from serving.database.address import Address
    from serving.settings.workers import ApiSettings

FORMS = {"openai": r"sk-(?!ant-)[\w-]{20,}", "anthropic": r"sk-ant-[\w-]{20,}", "gemini": r"[\w.-]{30,}"}
"""Pattern of the API keys of each provider."""
OWNERS = {
    "sk-ant-": "Anthropic",
    "sk-": "OpenAI",
    "AIza": "Google",
    "gsk_": "Groq",
    "xai-": "xAI",
    "pk_": "Podium",
}
"""Provider that issues the API keys with each prefix."""
HOMES = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Google"}
FAR_S = 2.0
"""Maximum difference between clocks in seconds, for budgets, leases and expiry of keys."""


def check_keys(case: ServerCase) -> Finding:
    """Check that the API key of each provider is set and has the right format. No provider is called."""
    from serving.settings.workers import API_SETTINGS, places_of

    places = [place for worker in case.settings.workers for place in places_of(worker).values()]
    findings = [_key(place, case) for place in places if isinstance(place, API_SETTINGS)]
    return worst(findings) if findings else ok("The settings use no provider.")


def check_workers(case: ServerCase) -> Finding:
    """Check that all workers can be created, and webhooks signed: plugins, libraries, credentials, secrets."""
    from cluster.local.processes import ROOT
    from serving.clients import find_faults
    from serving.settings.faults import in_file

    if str(ROOT) not in sys.path:  # the server runs there
        sys.path.append(str(ROOT))
    faults = asyncio.run(find_faults(case.settings, case.environment))
    if not faults:
        return ok("All workers can be created.")
    findings: list[Finding] = []
    for fault in faults:
        placed = in_file(fault, case.path)
        findings.append(_explain(f"{placed.message} {placed.detail}", f"Correct it in {case.path}."))
    return worst(findings)


def _explain(message: str, remedy: str) -> Finding:
    """Return a finding from an error's message. Its sentences after the first one, if any, are the remedy."""
    sentence, _, more = message.strip().partition(". ")
    return wrong(f"{sentence.rstrip('.')}.", more or remedy)


def check_effect(case: ServerCase) -> Finding:
    from serving.settings.keys import absent_workers, without_workers
    from serving.settings.price_table import with_known_prices
    from serving.settings.settings import SettingsError
    from serving.settings.without_effect import without_effect

    settings = case.settings
    try:
        settings = without_workers(settings, set(absent_workers(settings, case.environment)))
    except SettingsError:
        return ok("Not checked, because API keys of workers are missing. See `keys`.")
    if settings.baseline is not None:  # its price may be in the table
        settings = with_known_prices(settings, case.environment)
    idle = [warning(each.message, each.remedy) for each in without_effect(settings)]
    return worst(idle) if idle else ok("Every setting has an effect.")


def check_store(case: ServerCase) -> Finding:
    """Check that the store can be reached and has the schema of this version of Podium."""
    from conductor.errors import PodiumError
    from serving.database.address import StoreError, find_address
    from serving.database.migrate import check_version

    try:
        address = find_address(case.settings.store, case.environment)
        if address.kind == "sqlite" and not address.may_hold_something:
            return ok(
                f"The store {address.name} does not exist yet. The first start of the server creates it."
            )
        return ok(f"The store {address.name} has schema {asyncio.run(check_version(address))}.")
    except StoreError as error:
        remedy = f"Check the environment variable {case.settings.store.url_env}."
        return _explain(f"{error.message} {error.detail}", remedy)
    except PodiumError as error:
        return wrong(
            f"{error.message} {error.detail}".strip(),
            f"Start the database, or correct the environment variable {case.settings.store.url_env}. If it is not set, the store is a SQLite file.",
        )


def check_clock(case: ServerCase) -> Finding:
    """Check that the clocks of this machine and the database agree."""
    from conductor.errors import PodiumError
    from serving.database.address import find_address

    try:
        address = find_address(case.settings.store, case.environment)
        if address.kind == "sqlite":
            return ok("The store is on this machine and uses its clock.")
        return compare_clocks(asyncio.run(_ahead_s(address)), f"the database {address.name}")
    except PodiumError:
        return ok("Not checked, because the database's clock cannot be read. See `store`.")


def compare_clocks(ahead_s: float, owner: str, tolerance_s: float = FAR_S) -> Finding:
    """Check another clock, which is `ahead_s` of this machine's. The message names its `owner`."""
    if abs(ahead_s) <= tolerance_s:
        return ok(f"The clocks of this machine and of {owner} differ by at most {tolerance_s:.0f} s.")
    way = "behind" if ahead_s > 0 else "ahead of"
    message = f"The clock of this machine is {abs(ahead_s):.0f} s {way} that of {owner}, so keys, budgets and run leases expire at the wrong time."
    return wrong(
        message,
        "Synchronize both machines with `timedatectl set-ntp true` or chrony. For a container, run it on the host.",
    )


async def _ahead_s(address: Address) -> float:
    from serving.database.clock import read_clock_s

    began_s = time.time()
    there_s = await read_clock_s(address)
    return there_s - (began_s + time.time()) / 2


def _key(worker: ApiSettings, case: ServerCase) -> Finding:
    """Check that a worker's API key is set and has the right format."""
    from serving.settings.faults import SettingsError, in_file
    from serving.settings.keys import KeyFileError, read_key

    place = (
        f"environment variable {worker.api_key_env}" if worker.api_key_env else f"file {worker.api_key_file}"
    )
    if worker.api_key_env is None and worker.api_key_file is None:
        return ok(f"{worker.name} needs no API key.")
    try:
        key = read_key(worker, case.environment)
    except KeyFileError as error:
        return _explain(str(error), "The file must contain only the key.")
    if key is None:
        field = "api_key_env" if worker.api_key_env else "api_key_file"
        message = f"{worker.name} has no API key, because the {place} is not set."
        message = in_file(SettingsError(message, at=("workers", worker.name, field)), case.path).message
        if worker.optional:
            return ok(f"{message} The worker is skipped.")
        return wrong(message, f"Set the {place}, or set `optional: true` on this worker to serve without it.")
    return _form(worker, key, place)


def _form(worker: ApiSettings, key: str, place: str) -> Finding:
    """Check that an API key has the format of the provider's keys. The key itself is never shown."""
    remedy = f"Set it to the provider's API key for {worker.name}, without quotes or spaces."
    if re.search(r"[\s\"'<>]", key) or len(key) < 8:
        return wrong(
            f"The {place} does not contain a valid API key. Its value has spaces, quotes or a placeholder, or is too short.",
            remedy,
        )
    home = worker.base_url is None and getattr(worker, "service", None) is None
    if not home or re.fullmatch(FORMS[worker.kind], key):
        return ok(f"{worker.name} has an API key in the right format.")
    owner = next((name for start, name in OWNERS.items() if key.startswith(start)), None)
    if owner and owner != HOMES[worker.kind]:
        return wrong(
            f"The {place} contains an API key of {owner}, but {worker.name} calls {HOMES[worker.kind]}.",
            remedy,
        )
    return warning(f"The value of the {place} does not look like an API key of {HOMES[worker.kind]}.", remedy)
