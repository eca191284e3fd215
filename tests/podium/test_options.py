"""Options that the commands share."""

import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal

import pytest
import typer

from loadtest import percentile
from podium.command_line.options import (
    option,
    parse_count,
    parse_exact_rate,
    parse_port,
    parse_rate,
    parse_rates,
    parse_seed,
    parse_url,
    parse_usd,
)


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_count, "0", "'0' is not a whole number of at least 1"),
        (parse_count, "few", "'few' is not a whole number"),
        (parse_seed, "-1", "'-1' is not a whole number of at least 0"),
        (parse_port, "65536", "'65536' is not a port number from 0 to 65535"),
        (parse_rate, "nan", "'nan' is not a number of requests per second"),
        (parse_rate, "-1", "'-1' is not a number of requests per second"),
        (parse_rate, "inf", "'inf' is not a number of requests per second"),
        (parse_rates, "10,,20", "'' is not a number of requests per second"),
        (parse_exact_rate, "nan", "'nan' is not a number of requests per second"),
        (parse_exact_rate, "many", "'many' is not a number of requests per second"),
        (parse_usd, "0", "'0' is not a number of dollars above 0"),
        (parse_url, "podium.example", "such as http://podium.example"),
        (option(int), "x", "invalid literal"),
    ],
)
def test_a_wrong_option_is_reported_with_the_valid_form(
    parse: Callable[[str], object], text: str, why: str
) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(why)):
        parse(text)


def test_every_type_of_option_is_parsed() -> None:
    assert (
        parse_count("12"),
        parse_seed("0"),
        parse_port("8000"),
        parse_rate("0.5"),
        parse_rates("10,1000"),
    ) == (
        12,
        0,
        8000,
        0.5,
        [10, 1000],
    )
    assert (parse_exact_rate("0.1"), parse_usd("0.05")) == (Decimal("0.1"), Decimal("0.05"))
    assert parse_url("http://podium.example/") == "http://podium.example"
    with pytest.raises(typer.BadParameter, match="PODIUM_API_KEY") as refused:
        parse_url("https://me:secret@podium.example")
    assert "secret" not in str(refused.value)
    for address in ("http://", "http://h:x", "http://h:99999", "http://[::1", "http://h\n", "http://a b"):
        with pytest.raises(typer.BadParameter):
            parse_url(address)


def test_percentiles_are_by_nearest_rank() -> None:
    assert [percentile(range(1, 101), percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([3, 1, 2], 95) == 3
    assert percentile([], 50) != percentile([], 50), "not a number"


DROPPED = """
import os, signal, time, weakref
from podium.command_line.process import restore_interrupts
class Thing: pass
thing = Thing()
restore_interrupts()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
try:
    del thing
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_a_weak_references_callback_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
