"""Measurements beside a settings file: which of them is which worker, and what goes where.

A card tells what no other line does. Price, speed, context and pictures are settings of their own, and the
built-in prompt shows them below the card; so the card of such a pool tells them only where the prompt leaves
them out (`prompts.worker` without `{facts}`), and a measured speed goes into `tokens_per_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from conductor.plan.prompts import WORKER
from evaluation.cards.measurement import CardMeasurement, combine
from evaluation.cards.wording import can_write, write_card
from evaluation.errors import EvaluationError
from serving.settings.context_tokens import context_tokens_of
from serving.settings.settings import Settings
from serving.settings.worker_price import price_of
from serving.settings.workers import PythonSettings, ScriptedSettings, WorkerSettings

REPLAY = "evaluation.workers.replay:Replay"


@dataclass(slots=True)
class Changes:
    """What is to be written into a settings file.

    Args:
        fields: by worker and field.
        kept: the fields that somebody has set and that stay, such as `card of gpt`.
    """

    fields: dict[str, dict[str, str | float]] = field(default_factory=dict[str, dict[str, str | float]])
    kept: list[str] = field(default_factory=list[str])

    def set(
        self, worker: str, name: str, old: str | float | None, new: str | float, *, replace: bool
    ) -> None:
        """Note one field; one that is set otherwise is kept, unless `replace`."""
        if old == new:
            return
        if old and not replace:
            self.kept.append(f"{name} of {worker}")
        else:
            self.fields.setdefault(worker, {})[name] = new


def match_workers(
    measured: Mapping[str, CardMeasurement], settings: Settings, renamed: Mapping[str, str]
) -> tuple[dict[str, CardMeasurement], list[str]]:
    """The measurements by the settings' workers, and the names that are none of them.

    A measured name is a worker's own, that of the recorded model that it replays, or ends in its name
    (`openai_o3-mini`), as `podium recorded-pool` names them. `renamed` goes before all that.

    Raises:
        EvaluationError: `renamed` names nobody, two names end in that of one worker, or nobody was measured.
    """
    names = [worker.name for worker in settings.workers]
    for name, worker in renamed.items():
        if name not in measured or worker not in names:
            known, what = (names, worker) if name in measured else (list(measured), name)
            raise EvaluationError(f"--name {name}={worker}: {what!r} is none of {', '.join(known)}.")
    replayed = {
        str(worker.options.get("model")): worker.name
        for worker in settings.workers
        if isinstance(worker, PythonSettings) and worker.factory == REPLAY
    }
    found: list[dict[str, CardMeasurement]] = []
    strangers: list[str] = []
    by_tail: dict[str, str] = {}
    for name, each in measured.items():
        worker = renamed.get(name) or replayed.get(name) or (name if name in names else "")
        tail = name.partition("_")[2]
        if not worker and tail in names and tail not in renamed.values():
            worker = tail
            if (other := by_tail.setdefault(tail, name)) != name:
                raise EvaluationError(
                    f"{other} and {name} both end in {tail}. Say which of them it is: --name {name}={tail}."
                )
        if worker:
            found.append({worker: each})
        else:
            strangers.append(name)
    if not found:
        raise EvaluationError(
            f"None of those measured ({', '.join(measured)}) is a worker of the settings ({', '.join(names)}). "
            "Say who is who with --name MEASURED=WORKER."
        )
    return combine(found), strangers


def write_cards(
    measured: Mapping[str, CardMeasurement], settings: Settings | None, *, named: bool = False
) -> dict[str, str]:
    """The card of each worker with enough graded questions; `named`: it begins with the worker's name."""
    return {
        worker: (f"{worker}: " if named else "")
        + write_card(each, facts_of(settings.worker(worker), settings, each) if settings else ())
        for worker, each in measured.items()
        if can_write(each)
    }


def changes(
    measured: Mapping[str, CardMeasurement], cards: Mapping[str, str], settings: Settings, *, replace: bool
) -> Changes:
    """What of cards and speeds goes into the settings."""
    found = Changes()
    for name, each in measured.items():
        worker = settings.worker(name)
        if name in cards:
            found.set(name, "card", worker.card, cards[name], replace=replace)
        paced = isinstance(worker, ScriptedSettings)  # its `tokens_per_s` sets its speed
        if each.tokens_per_s is not None and shows_facts(settings) and not paced:
            speed = round_speed(each.tokens_per_s)
            found.set(name, "tokens_per_s", worker.tokens_per_s, speed, replace=replace)
    return found


def shows_facts(settings: Settings) -> bool:
    """Whether the conductor is shown price, speed, context and pictures below each card."""
    return "{facts}" in (settings.prompts.worker or WORKER)


def facts_of(worker: WorkerSettings, settings: Settings, measured: CardMeasurement) -> list[str]:
    """What the card tells beyond skills, in a few words each."""
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
    """To whole tokens, or one digit of a slow worker: a speed is never known better."""
    return round(tokens_per_s) if tokens_per_s >= 10 else max(round(tokens_per_s, 1), 0.1)


def usd(amount: Decimal) -> str:
    """Two digits."""
    return f"${Decimal(f'{amount:.2g}'):f}"


def _cost(amount: Decimal) -> str:
    return f"about {usd(amount)} a call" if amount else ""
