"""Prices that the settings do not set, from the price table that ships with Podium (`genai-prices`), by the
model's name and its endpoint. Looked up when the settings are read, never during a request.

Prices stay unknown for models and servers that are not in the table, and for calls with extra fields that
change the price.
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
from serving.settings.settings import Settings
from serving.settings.worker_base import PriceSettings
from serving.settings.workers import API_SETTINGS, ApiSettings, WorkerSettings, places_of

logger = logging.getLogger("podium")

CHILD = Path(__file__).with_name("price_table_child.py")
READ_S = 60.0
"""Time limit for reading the table, far above the usual time even on a busy machine."""
PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
"""Providers that are called if no address is set."""
ADDRESS_ENV = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
"""Environment variables from which the SDKs read an address."""
PRICED_APART = frozenset(
    ("service_tier", "serviceTier", "speed", "inference_geo", "tools", "mcp_servers", "plugins", "models",
     "web_search_options", "search_parameters", "modalities", "audio", "container", "n", "prediction")
)  # fmt: skip
"""Fields of `extra_body` that make a call cost something other than its tokens at the usual rate."""


class PriceQuery(NamedTuple):
    """Model whose price is looked up."""

    provider: str | None
    """Name of the provider, or None for the provider whose model has this name, unless `address` is set."""
    address: str | None
    """Replaces `provider` if set."""
    model: str


_prices: dict[tuple[date, PriceQuery], PriceSettings | None] = {}
"""Prices that were read today. They change with the date."""


def with_known_prices(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return `settings` with the table's price for API workers and a baseline without one. Looking up takes
    seconds, so call it in a thread or at the start. SDKs read addresses from `environment`.
    """
    unpriced = {
        place: own
        for worker in settings.workers
        for place, own in places_of(worker).items()
        if isinstance(own, API_SETTINGS) and own.price is None
    }
    questions = {
        place: question for place, own in unpriced.items() if (question := question_of(own, environment))
    }
    answers = dict(zip(questions, look_up(list(questions.values())), strict=True))
    prices = {place: answers.get(place) for place in unpriced}
    for place, own in unpriced.items():
        _log_price(place, own.model, prices[place])
    workers = tuple(_with_price(worker, prices) for worker in settings.workers)
    return _with_baseline_price(settings.model_copy(update={"workers": workers}))


def _with_baseline_price(settings: Settings) -> Settings:
    """Return `settings` with the table's price for a baseline that is not a worker and has no price."""
    baseline = settings.baseline
    names = [worker.name for worker in settings.workers]
    if baseline is None or baseline.price is not None or baseline.model in names:
        return settings
    (price,) = look_up([PriceQuery(None, None, baseline.model)])
    return settings.model_copy(update={"baseline": baseline.model_copy(update={"price": price})})


def _with_price(worker: WorkerSettings, prices: Mapping[str, PriceSettings | None]) -> WorkerSettings:
    if not isinstance(worker, API_SETTINGS) or not worker.deployments:
        price = prices.get(worker.name)
        return worker.model_copy(update={"price": price}) if price else worker
    deployments = tuple(
        each.model_copy(update={"price": price}) if (price := prices.get(place)) else each
        for each, place in zip(worker.deployments, places_of(worker), strict=True)
    )
    return worker.model_copy(update={"deployments": deployments})


def question_of(worker: ApiSettings, environment: Mapping[str, str]) -> PriceQuery | None:
    """Return the query to the price table for `worker`, or None if no answer of the table would be correct."""
    if PRICED_APART & worker.extra_body.keys():
        return None
    model = (worker.like or worker.model).removeprefix("models/")
    if worker.service == "bedrock" and worker.base_url is None:
        return PriceQuery("aws", None, worker.model)  # the name contains the rate: `eu.`, `global.`
    if worker.service == "vertex" and worker.base_url is None:  # the table has no rates for regions
        return PriceQuery("google", None, model) if worker.region == "global" else None
    address = worker.base_url or environment.get(ADDRESS_ENV.get(worker.kind, "")) or None
    return PriceQuery(None if address else PROVIDERS[worker.kind], address, model)


def look_up(questions: list[PriceQuery]) -> list[PriceSettings | None]:
    """Return the prices in order, or the known ones with a log line if the table cannot be read."""
    today = datetime.now(tz=UTC).date()
    new = [each for each in dict.fromkeys(questions) if (today, each) not in _prices]
    if new:
        try:
            answers = _ask(new)
        except (OSError, subprocess.SubprocessError, ValueError) as exc:
            logger.error(
                "Cannot read the price table; prices that are missing from the settings are unknown: %s", exc
            )
            return [_prices.get((today, each)) for each in questions]
        _prices.update(((today, question), price) for question, price in zip(new, answers, strict=True))
    return [_prices[today, each] for each in questions]


def _ask(questions: list[PriceQuery]) -> list[PriceSettings | None]:
    """Ask the child process. It inherits no environment, because that contains keys."""
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
    """Return the highest of the prices at different hours of the day."""
    if not answer:
        return None
    try:
        prices = [PriceSettings.model_validate(each).to_price() for each in answer]
    except ValidationError:
        return None
    return PriceSettings.model_validate(asdict(dearest_of(prices)))


def _log_price(worker: str, model: str, price: PriceSettings | None) -> None:
    if price is None:
        logger.warning(
            "Worker %s: the price of model %s is unknown, so requests with a cost limit and keys with a budget cannot use this worker."
            " Set its `price`.",
            worker,
            model,
        )
        return
    logger.info(
        "Worker %s: model %s costs $%f per million input tokens and $%f per million output tokens, according to genai-prices %s.",
        worker,
        model,
        price.input_usd_per_mtok,
        price.output_usd_per_mtok,
        version("genai-prices"),
    )
