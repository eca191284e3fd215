"""Types of command-line options: what argparse calls with an option's text. Standard library only."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from decimal import Decimal
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlsplit

Value = TypeVar("Value")
Number = TypeVar("Number", int, float, Decimal)


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """`parse` as a type for argparse, which shows the message of this exception only."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return convert


def number(
    convert: Callable[[str], Number], what: str, allow: Callable[[Number], bool]
) -> Callable[[str], Number]:
    """A type for argparse: text that `convert` takes and whose value `allow` accepts; errors call it `what`."""

    def read(text: str) -> Number:
        try:
            value = convert(text)
        except (ValueError, ArithmeticError):
            value = None
        if value is None or not allow(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return read


RATE = "a rate: a number of requests per second above 0"

count = number(int, "a whole number of at least 1", lambda value: value >= 1)
seed = number(int, "a whole number of at least 0", lambda value: value >= 0)
port = number(int, "a port number (0 to 65535)", lambda value: 0 <= value < 2**16)
seconds = number(float, "a number of seconds above 0", lambda value: 0 < value < math.inf)
rate = number(float, RATE, lambda value: 0 < value < math.inf)
exact_rate = number(Decimal, RATE, lambda value: value.is_finite() and value > 0)
usd = number(Decimal, "a number of dollars above 0", lambda value: value.is_finite() and value > 0)


def rates(text: str) -> list[float]:
    """Rates with commas between them."""
    return [rate(part) for part in text.split(",")]


@option
def address(text: str) -> str:
    """An IP address to listen on, not a name: what a name means can change."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IP address, such as 127.0.0.1 or 0.0.0.0") from None


@option
def url(text: str) -> str:
    """An http address, without a slash at its end and without a secret: addresses are printed."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} has no scheme; write http://{text}")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError(f"{text!r} has characters that are in no address")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            "an address with a name or a password in it would be printed; a key goes into PODIUM_API_KEY"
        )
    if not parts.hostname or parts.port == 0:  # `port` raises where it is none
        raise ValueError(f"{text!r} names no server; write http://127.0.0.1:8000")
    return text.rstrip("/")
