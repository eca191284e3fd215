"""Match measurements to the workers of a settings file, and determine the changes to the file.

A card does not repeat other settings. Price, speed, context and image support are settings too, and the
built-in prompt shows them below the card. The card states them only if the prompt does not (`prompts.worker`
without `{facts}`). A measured speed is written to `tokens_per_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from conductor.plan.prompts import WORKER
from evaluation import EvaluationError
from evaluation.cards.measurement import CardMeasurement, combine
from evaluation.cards.wording import can_write, write_card
from serving.settings.settings import Settings
from serving.settings.worker_profile import context_tokens_of, price_of
from serving.settings.workers import PythonSettings, ScriptedSettings, WorkerSettings

REPLAY = "evaluation.workers.replay:Replay"


@dataclass(slots=True)
class Changes:
    """Changes to a settings file.

    Args:
        unchanged: descriptions of the existing fields that stay unchanged, such as `card of gpt`.
    """

    fields: dict[str, dict[str, str | float]] = field(default_factory=dict[str, dict[str, str | float]])
    unchanged: list[str] = field(default_factory=list[str])

    def set(
        self, worker: str, name: str, old: str | float | None, new: str | float, *, replace: bool
    ) -> None:
        """Set a new value of a field. An existing other value is kept unless `replace` is true."""
        if old == new:
            return
        if old and not replace:
            self.unchanged.append(f"{name} of {worker}")
        else:
            self.fields.setdefault(worker, {})[name] = new


def match_workers(
    measured: Mapping[str, CardMeasurement], settings: Settings, renamed: Mapping[str, str]
) -> tuple[dict[str, CardMeasurement], list[str]]:
    """Return the measurements by worker of the settings, and the measured names that match no worker.

    A measured name matches a worker in three cases: it is the worker's name, it is the recorded model that
    the worker replays, or its part after the first underscore is the worker's name (`openai_o3-mini`, as
    `podium recorded-pool` names them). `renamed` takes precedence.
    """
    names = [worker.name for worker in settings.workers]
    for name, worker in renamed.items():
        if name not in measured or worker not in names:
            choices, what = (names, worker) if name in measured else (list(measured), name)
            raise EvaluationError(
                f"--name {name}={worker}: {what!r} does not exist. Choose from: {', '.join(choices)}."
            )
    replayed = {
        str(worker.options.get("model")): worker.name
        for worker in settings.workers
        if isinstance(worker, PythonSettings) and worker.factory == REPLAY
    }
    matched: list[dict[str, CardMeasurement]] = []
    unmatched: list[str] = []
    by_tail: dict[str, str] = {}
    for name, each in measured.items():
        worker = renamed.get(name) or replayed.get(name) or (name if name in names else "")
        tail = name.partition("_")[2]
        if not worker and tail in names and tail not in renamed.values():
            worker = tail
            if (other := by_tail.setdefault(tail, name)) != name:
                raise EvaluationError(
                    f"{other} and {name} both match the worker {tail}. Choose one of them, for example with --name {name}={tail}."
                )
        if worker:
            matched.append({worker: each})
        else:
            unmatched.append(name)
    if not matched:
        raise EvaluationError(
            f"No measured name ({', '.join(measured)}) matches a worker of the settings ({', '.join(names)}). "
            "Use --name MEASURED=WORKER to match them."
        )
    return combine(matched), unmatched


def write_cards(
    measured: Mapping[str, CardMeasurement], settings: Settings | None, *, named: bool = False
) -> dict[str, str]:
    """Return the cards of workers with enough graded questions. With `named`, they begin with the name."""
    return {
        worker: (f"{worker}: " if named else "")
        + write_card(each, facts_of(settings.worker(worker), settings, each) if settings else ())
        for worker, each in measured.items()
        if can_write(each)
    }


def changes(
    measured: Mapping[str, CardMeasurement], cards: Mapping[str, str], settings: Settings, *, replace: bool
) -> Changes:
    """Return the changes that write cards and speeds into the settings."""
    result = Changes()
    for name, each in measured.items():
        worker = settings.worker(name)
        if name in cards:
            result.set(name, "card", worker.card, cards[name], replace=replace)
        paced = isinstance(worker, ScriptedSettings)  # for these, `tokens_per_s` sets the speed
        if each.tokens_per_s is not None and shows_facts(settings) and not paced:
            speed = round_speed(each.tokens_per_s)
            result.set(name, "tokens_per_s", worker.tokens_per_s, speed, replace=replace)
    return result


def shows_facts(settings: Settings) -> bool:
    """Return whether the conductor's prompt shows price, speed, context and image support below each card."""
    return "{facts}" in (settings.prompts.worker or WORKER)


def facts_of(worker: WorkerSettings, settings: Settings, measured: CardMeasurement) -> list[str]:
    """Return the facts that the card states in addition to skills. Each fact is a few words."""
    price, cost = price_of(worker), measured.usd_per_call
    if shows_facts(settings):
        return [_cost(cost)] if price is None and cost else []
    speed = measured.tokens_per_s or worker.tokens_per_s
    context = context_tokens_of(worker, settings)
    per_mtok = price.output_usd_per_mtok if price else 0
    priced = f"${per_mtok:f} per million output tokens" if per_mtok else ""
    return [
        fact
        for fact in (
            priced if cost is None else _cost(cost),
            f"{round_speed(speed):g} tokens/s" if speed else "",
            f"context of {context:,} tokens" if context else "",
            "sees images" if worker.sees_images else "",
        )
        if fact
    ]


def round_speed(tokens_per_s: float) -> float:
    """Round to whole tokens, or to a decimal for slow workers. More digits would suggest more precision."""
    return round(tokens_per_s) if tokens_per_s >= 10 else max(round(tokens_per_s, 1), 0.1)


def usd(amount: Decimal) -> str:
    """Format an amount with two significant digits."""
    return f"${Decimal(f'{amount:.2g}'):f}"


def _cost(amount: Decimal) -> str:
    return f"about {usd(amount)} a call" if amount else ""
