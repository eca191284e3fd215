"""`fallbacks: auto`: fallbacks are chosen by card, then by price."""

import logging
from typing import Any

import pytest

from conductor.model.usage import Price
from serving.pool import Pool, build_pool
from serving.settings.fallbacks import MOST, Fallback, chain_of, fallbacks_of, likeness, takes_of
from serving.settings.keys import without_workers
from serving.settings.patch import apply_patch
from serving.settings.settings import Settings, SettingsError, parse

Json = dict[str, Any]
MATHS = "Hard mathematics: proofs, algebra, geometry."


def price(usd: float) -> Json:
    return {"price": {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}}


def api(name: str, usd: float = 1, card: str = "", **more: Any) -> Json:
    place = {"kind": "openai", "model": "some-model", "base_url": "https://models.example/v1"}
    return {"name": name, "card": card, **place} | price(usd) | more


def settings_with(*others: Json, own: Json | None = None, **more: Any) -> Settings:
    first = api("own", card=MATHS) | (own or {}) | {"fallbacks": "auto"}
    return parse({"workers": [first, *others]} | more)


def chain(*others: Json, own: Json | None = None, **more: Any) -> list[str]:
    settings = settings_with(*others, own=own, **more)
    return list(fallbacks_of(settings.worker("own"), settings))


def pool(settings: Settings) -> Pool:
    return build_pool(settings, {}, engines={})


def test_card_similarity_ignores_common_words():
    assert likeness(MATHS, MATHS) == pytest.approx(1)
    assert likeness(MATHS, "Proofs in geometry.") > likeness(MATHS, "Proofs, poems and letters.") > 0
    assert likeness("Best at the proofs", "the best at poems") == 0, "words that all cards use"
    assert likeness("A PROOF!", "proofs; proof") == pytest.approx(1), "neither case, nor mark, nor plural"
    assert likeness("", "") == likeness("", MATHS) == 0


def test_the_most_similar_card_is_first_and_then_the_cheaper_one():
    near, far = "Hard mathematics: algebra and proofs.", "Geometry, maps and travel."
    others = [api("far", 0.1, far), api("dear", 1.5, near), api("cheap", 0.9, near)]
    assert chain(*others) == ["cheap", "dear", "far"]
    assert chain(*reversed(others)) == ["cheap", "dear", "far"], "in whatever order they are written"


@pytest.mark.parametrize("card", ["", "Poems and letters."])
def test_without_a_similar_card_the_nearest_price_is_first(card: str):
    others = [api("half", 0.5), api("double", 2), api("tenth", 0.1), api("same", 1)]
    assert chain(*others, own={"card": card}) == ["same", "half", "tenth"]


def test_workers_without_a_similar_card_come_last():
    assert chain(api("same"), api("alike", 0.1, MATHS)) == ["alike", "same"]


def test_workers_with_equal_prices_keep_their_order():
    assert chain(*(api(name) for name in "zyxab")) == ["z", "y", "x"]
    assert len("zyx") == MOST


def test_a_fallback_costs_at_most_twice_as_much():
    assert chain(api("twice", 2, MATHS), api("more", 2.01, MATHS)) == ["twice"]
    assert chain(api("a", 0.001), api("b", 0), own={"price": price(0)["price"]}) == ["b"]


def test_a_worker_with_an_unknown_price_is_never_a_fallback():
    assert chain(api("unknown") | {"price": None}) == []
    assert chain(api("a", 0.1), api("free", 0), own={"price": None}) == ["free"]


def test_deployments_count_with_their_highest_or_lowest_price():
    places = [{"name": "x"} | price(1), {"name": "y"} | price(3)]
    assert chain(api("a", deployments=places)) == []
    assert chain(api("a", 2), api("b", 2.5), own={"deployments": places}) == ["a"]


@pytest.mark.parametrize(
    ("own", "less", "enough"),
    [
        ({"sees_images": True}, {}, {"sees_images": True}),
        ({"reads_pdfs": True}, {}, {"reads_pdfs": True}),
        ({"calls_tools": True}, {"calls_tools": False}, {}),
        ({"context_tokens": 1000}, {"context_tokens": 999}, {"context_tokens": 1000}),
        ({"context_tokens": 1000}, {"context_tokens": 999}, {}),
        ({"local": True}, {}, {"local": True}),
    ],
)
def test_a_worker_with_fewer_capabilities_is_no_fallback(own: Json, less: Json, enough: Json):
    assert chain(api("less", card=MATHS, **less), api("enough", **enough), own=own) == ["enough"]
    assert chain(api("less", **less), own={"calls_tools": False}) == ["less"], "where it is not needed"


def test_a_local_workers_fallback_has_only_local_deployments():
    here, away = {"name": "here", "local": True}, {"name": "away", "local": False}
    others = [api("mixed", card=MATHS, deployments=[here, away]), api("near", deployments=[here])]
    assert chain(*others, own={"local": True}) == ["near"]
    assert chain(*others) == ["mixed", "near"]


def test_only_models_of_the_pool_are_fallbacks_and_not_the_conductor():
    program = {"name": "vote", "kind": "python", "factory": "votes:majority"} | price(1)
    script = {"name": "script", "kind": "scripted"} | price(1)
    vectors = api("vectors", serves=["embeddings"])
    others = [program, script, vectors, api("out", in_pool=False), api("leads"), api("fits")]
    assert chain(*others, conductor={"worker": "leads"}) == ["fits"]
    assert chain(*others, own={"in_pool": False}, conductor={"worker": "own"}) == ["leads", "fits"]


def test_a_model_of_the_same_engine_is_no_fallback():
    engine = {"kind": "vllm", "model": "m"}
    other = engine | {"name": "other"}
    own, shared = engine | {"name": "own", "fallbacks": "auto"}, {"kind": "vllm", "deployment": "own"}
    settings = parse({"workers": [own, shared | {"name": "shared", "fallbacks": "auto"}, other]})
    assert [fallbacks_of(settings.worker(name), settings) for name in ("own", "shared")] == [("other",)] * 2


def test_each_fallback_states_how_it_was_chosen():
    settings = settings_with(api("alike", 1.5, MATHS), api("free", 0))
    assert chain_of(settings.worker("own"), settings) == (
        Fallback("alike", "by similarity of the cards (1.0), at 1.5 times the price"),
        Fallback("free", "by price, because no card is similar, at no cost"),
    )


def test_configured_fallbacks_are_not_changed():
    settings = parse({"workers": [api("own", fallbacks=["b", "a"]), api("a", card=MATHS), api("b", 9)]})
    assert chain_of(settings.worker("own"), settings) == (Fallback("b"), Fallback("a"))


def test_the_start_logs_the_fallbacks_or_their_absence(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "podium"):
        pool(settings_with(api("alike", 1, MATHS), api("lone", 9, fallbacks=["own"])))
        pool(settings_with())
    assert (
        "Worker own falls back to alike, chosen by similarity of the cards (1.0), at the same price."
        in caplog.text
    )
    assert "Worker own has no fallback, because no other worker is suitable" in caplog.text
    assert "Worker lone" not in caplog.text


def test_a_call_reserves_the_highest_price_of_its_fallbacks():
    claude = api("claude", 2) | {"kind": "anthropic", "model": "claude-sonnet-5-5"}
    settings = settings_with(api("dear", 9), claude)
    member = pool(settings).members["own"]
    assert (member.has_fallback, member.worst_price) == (
        True,
        Price(*[claude["price"]["input_usd_per_mtok"]] * 2),
    )
    assert "top_logprobs" not in takes_of(settings.worker("own"), settings)
    assert not pool(settings_with(api("dear", 9))).members["own"].has_fallback


def test_adding_or_disabling_a_worker_changes_the_fallbacks():
    settings = settings_with(api("a"), own={"card": ""})
    assert fallbacks_of(settings.worker("own"), settings) == ("a",)
    more = apply_patch(settings, {"workers": [api("b"), {"name": "a", "in_pool": False}]})
    assert fallbacks_of(more.worker("own"), more) == ("b",)
    fewer = without_workers(more, {"b"})
    assert fallbacks_of(fewer.worker("own"), fewer) == ()


def test_a_conductor_without_its_key_is_replaced_by_the_first_suitable_worker():
    settings = settings_with(api("a", card=MATHS), api("b"), conductor={"worker": "own"})
    led = [without_workers(settings, absent).conductor for absent in ({"own"}, {"own", "a"})]
    assert [conductor.worker for conductor in led if conductor] == ["a", "b"]
    with pytest.raises(
        SettingsError, match=r"'own' and its fallbacks have no API key|key of the conductor 'own' is not set"
    ):
        without_workers(settings, {"own", "a", "b"})
