"""Types of command-line options, as `type=` of argparse. Standard library only."""

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
    """Wrap `parse` for argparse, which shows only the messages of ArgumentTypeError."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return convert


def number(
    convert: Callable[[str], Number], what: str, allow: Callable[[Number], bool]
) -> Callable[[str], Number]:
    """Return an argparse type for numbers.

    Args:
        convert: parses the text.
        what: describes valid values in error messages.
        allow: returns whether a parsed value is valid.
    """

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
    """Parse rates separated by commas."""
    return [rate(part) for part in text.split(",")]


@option
def address(text: str) -> str:
    """Parse an IP address to listen on. A name is rejected, because what it resolves to can change."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address, such as 127.0.0.1 or 0.0.0.0") from None


@option
def url(text: str) -> str:
    """Parse an HTTP URL and drop a trailing slash. Credentials are rejected, because URLs are printed."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} has no scheme; write http://{text}")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError(f"{text!r} has characters that a URL cannot have")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            "a URL must not contain a user name or password, because it is printed; set PODIUM_API_KEY"
        )
    if not parts.hostname or parts.port == 0:  # `port` raises if it is not a number
        raise ValueError(f"{text!r} has no valid host and port; write http://127.0.0.1:8000")
    return text.rstrip("/")
