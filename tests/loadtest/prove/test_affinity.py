"""Counts of the affinity proof: turns that stayed on their worker, and when they returned to it."""

from collections import Counter

from loadtest.prove.affinity import AffinityTurn, find_return, summarize


def turn(sent_s: float, *, stayed: bool = True, lost: int = 0) -> AffinityTurn:
    return AffinityTurn(sent_s, stayed, 1000, lost)


def test_the_return_time_is_when_nearly_all_turns_have_stayed():
    turns = [turn(20 + n / 10, stayed=n >= 30) for n in range(200)]
    assert find_return(turns, 20) == 3.0
    turns.append(turn(60, stayed=False))
    assert find_return(turns, 20) == 3.0  # one of 171 may move


def test_turns_on_random_workers_never_return():
    turns = [turn(20 + n, stayed=n % 3 == 0) for n in range(1, 31)]
    assert find_return(turns, 20) is None
    assert find_return([], 20) is None


def test_phases_are_separated_by_when_their_turns_were_sent():
    turns = [turn(1), turn(5, stayed=False, lost=900), turn(6), turn(7), *[turn(11, lost=100)] * 20]
    before, during, after = summarize(turns, Counter(), 5, 10)
    assert [each.turns for each in (before, during, after)] == [1, 3, 20]
    assert (during.lost_tokens, during.lost, after.lost) == (900, 0.3, 0.1)
    assert (after.back_after_s, before.back_after_s) == ("1.0", "")
    assert all(each.is_right for each in (before, during, after))
    assert not any(each.is_right for each in summarize(turns, Counter({"503 worker_unavailable": 1}), 5, 10))
