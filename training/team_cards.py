"""Write workers' cards from measurements, so that a conductor learns to read such cards too."""

import random
from collections.abc import Mapping, Sequence

from evaluation import EvaluationError
from evaluation.cards import CardMeasurement, can_write, measure_recorded, vary_card, write_card
from evaluation.cards.settings_cards import match_workers
from serving.settings.settings import SettingsError
from serving.settings.settings import load as load_settings
from training.config import Config


def measure_teams(config: Config) -> dict[str, Mapping[str, CardMeasurement]]:
    """Return the measurements of each worker by source, from the recorded sets in `pool.cards`."""
    settings = load_settings(config.pool.settings) if config.pool.cards else None
    measured: dict[str, Mapping[str, CardMeasurement]] = {}
    for source, name in config.pool.cards.items():
        assert settings is not None
        try:
            measured[source], _ = match_workers(measure_recorded(name), settings, {})
        except EvaluationError as exc:
            raise SettingsError(f"pool.cards.{source}: {exc.message}") from exc
    return measured


def write_team_cards(
    measured: Mapping[str, CardMeasurement], workers: Sequence[str], words: random.Random | None = None
) -> dict[str, str]:
    """Return the named card of each worker with enough measurements, in random `words` or as `podium cards`."""
    describable = {name: measured[name] for name in workers if name in measured and can_write(measured[name])}
    return {
        name: f"{name}: {vary_card(each, words) if words else write_card(each)}"
        for name, each in describable.items()
    }
