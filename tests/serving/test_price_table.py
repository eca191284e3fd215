"""Prices of provider models that the settings do not state."""

import logging
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from conductor.model.usage import Usage
from serving.pool import build_pool
from serving.settings import price_table
from serving.settings.price_table import PriceQuery, look_up, question_of, with_known_prices
from serving.settings.settings import Settings, load, parse
from serving.settings.worker_base import PriceSettings
from serving.settings.worker_profile import baseline_price_of
from serving.settings.workers import API_SETTINGS, ApiSettings

ROOT = Path(__file__).parents[2]
OWN = {"input_usd_per_mtok": 7, "output_usd_per_mtok": 8}


def settings_of(*workers: dict[str, Any]) -> Settings:
    return parse({"workers": [{"name": f"w{number}"} | worker for number, worker in enumerate(workers)]})


def priced(worker: dict[str, Any], environment: dict[str, str] | None = None) -> PriceSettings | None:
    return with_known_prices(settings_of(worker), environment or {}).workers[0].price


@pytest.mark.parametrize("file", ["api.yaml", "gpu.yaml", "local.yaml"])
def test_prices_in_shipped_settings_match_the_table(file: str):
    workers = [each for each in load(ROOT / "cluster" / file).workers if isinstance(each, API_SETTINGS)]
    questions = [question_of(each, {}) for each in workers]
    assert [each.price for each in workers] == look_up([each for each in questions if each])


def test_settings_override_the_price_table():
    settings = with_known_prices(
        settings_of(
            {"kind": "openai", "model": "gpt-5", "price": OWN},
            {"kind": "openai", "model": "gpt-5"},
            {"kind": "openai", "model": "gpt-that-no-table-has"},
            {"kind": "scripted"},
        ),
        {},
    )
    members = build_pool(settings, {"OPENAI_API_KEY": "sk-1"}, {}).members
    assert members["w0"].price == PriceSettings.model_validate(OWN).to_price()
    assert members["w1"].price is not None
    assert members["w1"].price.of(Usage(1_000_000, 1_000_000)) == Decimal("11.25")
    assert members["w2"].price is None
    assert members["w3"].price is not None
    assert members["w3"].price.of(Usage(1, 1)) == 0


def test_prices_include_tiers_and_cache_writes():
    gemini, claude = (
        priced({"kind": "gemini", "model": "models/gemini-2.5-pro"}),
        priced({"kind": "anthropic", "model": "claude-sonnet-4-5"}),
    )
    assert gemini
    assert claude
    assert gemini.to_price().of(Usage(200_001, 0)) == Decimal("0.5000025")
    assert gemini.to_price().of(Usage(200_000, 0)) == Decimal("0.25")
    assert (claude.cache_write_usd_per_mtok, claude.cache_write_1h_usd_per_mtok) == (Decimal("3.75"), 6)


def test_each_deployment_has_its_own_price_and_the_highest_is_held():
    gpt = {"kind": "openai", "model": "gpt-5", "deployments": [
        {"name": "own"},
        {"name": "azure", "base_url": "https://us.openai.azure.com/openai/v1/"},
        {"name": "dear", "price": OWN | {"output_usd_per_mtok": 99}},
    ]}  # fmt: skip
    settings = with_known_prices(settings_of(gpt), {})
    (worker,) = settings.workers
    assert isinstance(worker, ApiSettings)
    assert worker.price is None
    outputs = [each.price.output_usd_per_mtok for each in worker.deployments if each.price]
    assert outputs == [10, 10, 99]
    worst = build_pool(settings, {"OPENAI_API_KEY": "sk-1"}, {}).members["w0"].worst_price
    assert worst
    assert worst.output_usd_per_mtok == 99
    unknown = {"name": "unknown", "base_url": "http://127.0.0.1:1/v1"}
    settings = with_known_prices(settings_of(gpt | {"deployments": [{"name": "own"}, unknown]}), {})
    assert build_pool(settings, {"OPENAI_API_KEY": "sk-1"}, {}).members["w0"].worst_price is None


def test_a_baseline_has_the_price_of_its_worker_or_of_the_table():
    worker = {"kind": "openai", "model": "gpt-5", "name": "mine", "price": OWN}
    for baseline, input_usd in (("mine", 7), ("gpt-5", Decimal("1.25")), ("gpt-that-no-table-has", None)):
        price = baseline_price_of(with_known_prices(parse({"workers": [worker], "baseline": baseline}), {}))
        assert (price and price.input_usd_per_mtok) == input_usd, baseline
    dear = {"name": "dear", "price": OWN | {"input_usd_per_mtok": 99}}
    places = {"kind": "openai", "model": "gpt-5", "name": "mine", "deployments": [{"name": "own"}, dear]}
    settings = with_known_prices(parse({"workers": [places], "baseline": {"model": "mine"}}), {})
    highest = baseline_price_of(settings)
    assert highest
    assert (highest.input_usd_per_mtok, highest.output_usd_per_mtok) == (99, 10)
    assert baseline_price_of(parse({"workers": [worker]})) is None


def test_a_model_in_a_cloud_has_that_clouds_price():
    bedrock = {"kind": "anthropic", "service": "bedrock", "region": "eu-central-1"}
    vertex = {"kind": "gemini", "service": "vertex", "project": "p", "model": "gemini-2.5-pro"}
    ours = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
    claude = priced(bedrock | {"model": "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"}, ours)
    assert claude
    assert claude.input_usd_per_mtok == Decimal("3.3")
    assert priced(vertex | {"region": "global"})
    assert priced(vertex | {"region": "europe-west4"}) is None, "the table knows no rates of regions"


DEEPSEEK = {"kind": "openai", "base_url": "https://api.deepseek.com", "model": "deepseek-chat"}
AZURE = {"kind": "openai", "base_url": "https://us.openai.azure.com/openai/v1/", "model": "our-own-name"}


def test_a_price_that_depends_on_the_hour_is_the_highest_of_the_day():
    price = priced(DEEPSEEK)
    assert price
    assert (price.input_usd_per_mtok, price.output_usd_per_mtok) == (Decimal("0.27"), Decimal("1.1"))


def test_a_deployment_is_priced_by_its_known_model_name():
    assert priced(AZURE) is None
    price = priced(AZURE | {"like": "gpt-5"})
    assert price
    assert price.output_usd_per_mtok == 10


UNKNOWN: list[dict[str, Any]] = [
    {"kind": "openai", "model": "gpt-5", "base_url": "http://127.0.0.1:11434/v1"},
    {"kind": "anthropic", "model": "claude-sonnet-5", "base_url": "https://proxy.example.com"},
    {"kind": "gemini", "model": "gemini-that-no-table-has"},
    {"kind": "openai", "model": "gpt-5", "extra_body": {"service_tier": "priority"}},
    {"kind": "anthropic", "model": "claude-opus-4-8", "extra_body": {"speed": "fast"}},
    {"kind": "openai", "model": "sonar", "base_url": "https://api.perplexity.ai"},
]  # fmt: skip


@pytest.mark.parametrize("worker", UNKNOWN, ids=lambda worker: str(worker["model"]))
def test_prices_missing_in_the_table_stay_unknown(worker: dict[str, Any], caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "podium"):
        assert priced(worker) is None
    assert "Set its `price`" in caplog.text


def test_a_base_url_in_the_environment_makes_the_price_unknown():
    assert priced({"kind": "openai", "model": "gpt-5"}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}) is None


def test_an_unreadable_price_table_leaves_prices_unknown_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(price_table, "CHILD", tmp_path / "nothing.py")
    monkeypatch.setattr(price_table, "_prices", {})
    assert look_up([PriceQuery("openai", None, "gpt-5")]) == [None]
    assert "Cannot read the price table" in caplog.text


def test_the_process_that_reads_the_price_table_gets_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text(
        f"import os\nopen({str(tmp_path / 'seen')!r}, 'w').write(repr(dict(os.environ)))\nprint('[null]')"
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    monkeypatch.setattr(price_table, "CHILD", child)
    monkeypatch.setattr(price_table, "_prices", {})
    assert look_up([PriceQuery("openai", None, "gpt-5")]) == [None]
    assert "sk-planted" in repr(dict(os.environ))
    assert "sk-planted" not in (tmp_path / "seen").read_text()


def test_a_workers_price_is_looked_up_once_a_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    worker = settings_of(DEEPSEEK).workers[0]
    assert isinstance(worker, ApiSettings)
    question = question_of(worker, {})
    assert question
    prices = look_up([question, question])
    monkeypatch.setattr(price_table, "CHILD", tmp_path / "nothing.py")
    assert look_up([question, question]) == prices
    assert prices[0]
