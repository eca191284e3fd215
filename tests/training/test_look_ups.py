"""Look-ups: requests of a few words, and the worker whose card fits them."""

from collections import Counter
from functools import cache

from training.curriculum.look_ups import LONGEST, look_ups
from training.curriculum.materials import HELD_OUT_DOMAINS, load
from training.curriculum.questions import RequestQuestion
from training.curriculum.requests import best_workers

MATERIALS = load("train")
COUNT = 2000


@cache
def becoming_rare() -> list[RequestQuestion]:
    """Return look-ups whose first teams are mostly invented."""
    return look_ups(1, COUNT, 20, 0.8)


def is_made_up(question: RequestQuestion) -> bool:
    return question.request.parts[0].domain not in MATERIALS.domains


def test_every_look_up_has_a_best_worker_whose_card_fits():
    for question in becoming_rare():
        (part,) = question.request.parts
        best = best_workers(part, question.team)
        assert best
        assert 0 < len(question.request.text) <= LONGEST
        if is_made_up(question):
            (worker,) = best
            assert question.request.text in question.team.mates[worker].card


def test_consecutive_look_ups_share_a_team_and_made_up_teams_become_rare():
    drawn_look_ups = becoming_rare()
    teams = [drawn_look_ups[start].team for start in range(0, COUNT, 20)]
    assert all(each.team is teams[number // 20] for number, each in enumerate(drawn_look_ups))
    made_up = [is_made_up(each) for each in drawn_look_ups[::20]]
    assert sum(made_up[:30]) > 15 > 10 > sum(made_up[-30:]) > 0
    one, again, other = ([each.request for each in look_ups(seed, 400, 20, 0.8)] for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_look_ups_use_names_cards_and_requests_but_no_held_out_domain():
    ways: Counter[str] = Counter()
    for question in look_ups(2, COUNT, 20, 0.0):
        (part,), words = question.request.parts, question.request.text
        domain = MATERIALS.domains[part.domain]
        assert part.domain not in HELD_OUT_DOMAINS
        assert words not in {mate.card[:LONGEST] for mate in question.team.mates}
        if part.checks:
            ways["check"] += 1
        elif words == domain.what:
            ways["name"] += 1
        elif words in domain.names:
            ways["other name"] += 1
        else:
            ways["card" if any(card.startswith(words) for card in domain.cards) else "request"] += 1
    assert min(ways[way] for way in ("name", "other name", "card", "request", "check")) > 20
