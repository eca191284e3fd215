"""Prices that the settings do not state: from the price table that comes with Podium (`genai-prices`), by the
model's name and by where it is asked. Read when the settings are, never in a request.

Unknown stays unknown: a model that the table does not have, a server that it does not know, and calls that
are sent fields which change what they cost.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from conductor.model.usage import dearest_of
from serving.settings.prices import PriceSettings
from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, ApiSettings, WorkerSettings, places_of

logger = logging.getLogger("podium")

CHILD = Path(__file__).with_name("price_table_child.py")
READ_S = 60.0
"""Far longer than it takes, on a busy machine too."""
PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
"""Who is asked where no address is set."""
ADDRESS_ENV = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
"""Where the SDKs look for one then."""
PRICED_APART = frozenset(
    ("service_tier", "serviceTier", "speed", "inference_geo", "tools", "mcp_servers", "plugins", "models",
     "web_search_options", "search_parameters", "modalities", "audio", "container", "n", "prediction")
)  # fmt: skip
"""Fields of `extra_body` with which a call costs something else than its tokens at the usual rate."""


class Question(NamedTuple):
    """Whose price is looked up."""

    provider: str | None
    address: str | None
    """In place of `provider`."""
    model: str


_known: dict[tuple[date, Question], PriceSettings | None] = {}
"""What was read today: prices change with the date."""


def with_known_prices(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """`settings`, with the table's price for every worker of a provider that has none of its own.

    Takes a second or two where something has to be looked up: call it in a thread, or at the start.

    Args:
        settings: as they were written.
        environment: of this process: the SDKs take addresses from it.
    """
    unpriced = {
        place: own
        for worker in settings.workers
        for place, own in places_of(worker).items()
        if isinstance(own, API_SETTINGS) and own.price is None
    }
    asked = {
        place: question for place, own in unpriced.items() if (question := question_of(own, environment))
    }
    found = dict(zip(asked, look_up(list(asked.values())), strict=True))
    prices = {place: found.get(place) for place in unpriced}
    for place, own in unpriced.items():
        _tell(place, own.model, prices[place])
    workers = tuple(_with_price(worker, prices) for worker in settings.workers)
    return settings.model_copy(update={"workers": workers})


def _with_price(worker: WorkerSettings, prices: Mapping[str, PriceSettings | None]) -> WorkerSettings:
    """`worker`, at each of its deployments with the price of `prices` where it has none of its own."""
    if not isinstance(worker, API_SETTINGS) or not worker.deployments:
        price = prices.get(worker.name)
        return worker.model_copy(update={"price": price}) if price else worker
    deployments = tuple(
        each.model_copy(update={"price": price}) if (price := prices.get(place)) else each
        for each, place in zip(worker.deployments, places_of(worker), strict=True)
    )
    return worker.model_copy(update={"deployments": deployments})


def question_of(worker: ApiSettings, environment: Mapping[str, str]) -> Question | None:
    """What to ask the table of `worker`, at one of its places; None where no answer of it would hold."""
    if PRICED_APART & worker.extra_body.keys():
        return None
    model = (worker.like or worker.model).removeprefix("models/")
    if worker.service == "bedrock" and worker.base_url is None:
        return Question("aws", None, worker.model)  # its names say at which rate: `eu.`, `global.`
    if (
        worker.service == "vertex" and worker.base_url is None
    ):  # of models in a region the table knows no rate
        return Question("google", None, model) if worker.region == "global" else None
    address = worker.base_url or environment.get(ADDRESS_ENV.get(worker.kind, "")) or None
    return Question(None if address else PROVIDERS[worker.kind], address, model)


def look_up(questions: list[Question]) -> list[PriceSettings | None]:
    """The answers of the table, in the same order. Where it cannot be read nothing is known, and the log says
    why.
    """
    today = datetime.now(tz=UTC).date()
    new = [each for each in dict.fromkeys(questions) if (today, each) not in _known]
    if new:
        try:
            answers = _ask(new)
        except (OSError, subprocess.SubprocessError, ValueError) as exc:
            logger.error("The price table cannot be read, and its prices are unknown: %s", exc)
            return [_known.get((today, each)) for each in questions]
        _known.update(((today, question), price) for question, price in zip(new, answers, strict=True))
    return [_known[today, each] for each in questions]


def _ask(questions: list[Question]) -> list[PriceSettings | None]:
    """Ask the child. It inherits no environment: there are keys in it."""
    child = subprocess.run(
        [sys.executable, "-I", str(CHILD)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=True,
        timeout=READ_S,
        env={},
    )
    return [_dearest(answer) for answer in json.loads(child.stdout)]


def _dearest(answer: list[object] | None) -> PriceSettings | None:
    """One price for all hours of the day: the highest."""
    if not answer:
        return None
    try:
        prices = [PriceSettings.model_validate(each).to_price() for each in answer]
    except ValidationError:
        return None
    return PriceSettings.model_validate(asdict(dearest_of(prices)))


def _tell(worker: str, model: str, price: PriceSettings | None) -> None:
    if price is None:
        logger.warning(
            "Worker %s: what %s costs is unknown; requests with a cost limit and keys with a budget cannot use"
            " it. Set its `price`.",
            worker,
            model,
        )
        return
    logger.info(
        "Worker %s: %s costs $%f in, $%f out per million tokens, as genai-prices %s says.",
        worker,
        model,
        price.input_usd_per_mtok,
        price.output_usd_per_mtok,
        version("genai-prices"),
    )
