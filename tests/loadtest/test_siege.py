"""Siege: its verdict, its rows, and each attack with few connections on a router's own port.
tests/live/proxies/test_edge.py attacks the proxies.
"""

from dataclasses import replace

import pytest

from loadtest.siege.attack_kinds import EXTRA_KINDS, KINDS
from loadtest.siege.cli import NO_ATTACK, Case, besiege, cases, main, table
from loadtest.siege.servers import KEYS, PATHS, serve
from loadtest.siege.watch import Memory, SiegeResult
from podium.command_line.process import allow_open_files

SUCCESS = SiegeResult(
    streams=20,
    whole=20,
    n_requests=30,
    answered=30,
    slowest_gap_s=0.2,
    health_p99_s=0.1,
    memory=Memory(100, 500, 109, 109),
)
STREAM_S = 2.0
SMALL = 0.02
"""Fraction of each attack's connections."""


@pytest.mark.parametrize(
    "missed",
    [
        {"whole": 19},
        {"answered": 29},
        {"n_requests": 0, "answered": 0},
        {"slowest_gap_s": 1.0},
        {"health_p99_s": 0.5},
        {"memory": Memory(100, 500, 111, 120)},
        {"memory": Memory(100, 500, 109, 121)},
        {"breaches": ("The server accepted a key that was sent as a trailer.",)},
    ],
)
def test_one_missed_bound_fails_the_siege(missed: dict[str, float]) -> None:
    assert SUCCESS.withstood
    assert len(replace(SUCCESS, **missed).missed) == 1


def test_every_attack_runs_on_every_path() -> None:
    attacks = [(case.path, case.kind, case.addresses) for case in cases([])]
    for path in PATHS:
        assert attacks.count((path, NO_ATTACK, 1)) == 1
        for kind, row in KINDS.items():
            assert (
                tuple(addresses for each, of, addresses in attacks if (each, of) == (path, kind))
                == row.addresses
            )
    assert not [kind for _, kind, _ in attacks if kind in EXTRA_KINDS]
    chosen = cases(["haproxy:large_unfinished"])
    assert {(case.path, case.kind) for case in chosen} == {("haproxy", "large_unfinished")}
    assert {case.path for case in cases([], ["replica"])} == {"replica"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--paths", "serve,fast"],
            "--paths: unknown path 'fast'. Use one or more of haproxy, serve, replica.",
        ),
        (["--only", "serve:idel"], "--only matches no attack."),
    ],
)
def test_an_unknown_path_or_attack_is_reported_with_its_option(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_table_lists_missed_bounds() -> None:
    lines = table({Case("haproxy", "idle", 8): replace(SUCCESS, whole=19)}).splitlines()
    assert lines[-1].split(" | ") == [
        "| haproxy", "idle", "8", "19 of 20", "30 of 30", "0.20 s", "0.00 s", "100 ms", "100, 500, 109, 109 MB",
        "no: a stream was incomplete or changed |",
    ]  # fmt: skip


def test_a_low_limit_of_open_files_is_reported_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match="ulimit -H -n"):
        allow_open_files(10**12)


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.timeout(900)
async def test_a_router_withstands_a_small_version_of_each_attack() -> None:
    """Times are not checked, because the machine may be busy."""
    faults = dict[str, object]()
    async with serve("replica", STREAM_S) as target:
        assert target.keys.keys() == KEYS.keys()
        for kind, row in (KINDS | EXTRA_KINDS).items():
            count = max(1, round(row.count * SMALL))
            case = Case("replica", kind, 1)
            for _ in range(3):  # on a busy machine, an attacker may begin after the streams have ended
                result = await besiege(case, target, count, STREAM_S, streams=2, back_within_s=0)
                if result.attacked["made"]:
                    break
            assert result.attacked["made"] >= 1, f"{kind} reached nothing: {result.attacked}"
            if result.whole != 2 or result.answered != result.n_requests or result.breaches:
                faults[kind] = (result.lost, result.breaches)
    assert not faults
