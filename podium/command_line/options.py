"""Types of command-line options: a `parser` of Typer for each, and the options that several verbs have."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import typer

Value = TypeVar("Value")
Number = TypeVar("Number", int, float, Decimal)

JsonLines = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Adapt `parse` to Typer, so that the message of a ValueError names the option. Defaults are not parsed."""

    def convert(text: str) -> Value:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return text
        try:
            return parse(text)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return convert


def number(
    convert: Callable[[str], Number], what: str, allow: Callable[[Number], bool]
) -> Callable[[str], Number]:
    """Create a parser for numbers that rejects those that are not allowed. `what` describes valid ones."""

    def read(text: str) -> Number:
        try:
            value = convert(text)
        except (ValueError, ArithmeticError):
            value = None
        if value is None or not allow(value):
            raise ValueError(f"{text!r} is not {what}")
        return value

    return option(read)


def is_number(text: str) -> bool:
    """Return whether `text` is a finite number. It may have commas between its digits."""
    try:
        return Decimal(text.replace(",", "").strip()).is_finite()
    except InvalidOperation:
        return False


RATE = "a number of requests per second above 0"

parse_count = number(int, "a whole number of at least 1", lambda value: value >= 1)
parse_seed = number(int, "a whole number of at least 0", lambda value: value >= 0)
parse_port = number(int, "a port number from 0 to 65535", lambda value: 0 <= value < 2**16)
parse_seconds = number(float, "a number of seconds above 0", lambda value: 0 < value < math.inf)
parse_rate = number(float, RATE, lambda value: 0 < value < math.inf)
parse_exact_rate = number(Decimal, RATE, lambda value: value.is_finite() and value > 0)
parse_usd = number(Decimal, "a number of dollars above 0", lambda value: value.is_finite() and value > 0)


@option
def parse_rates(text: str) -> list[float]:
    """Parse rates separated by commas."""
    return [parse_rate(part) for part in text.split(",")]


@option
def parse_address(text: str) -> str:
    """Parse an IP address to listen on. A host name is rejected, because its addresses can change."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address, such as 127.0.0.1 or 0.0.0.0") from None


@option
def parse_url(text: str) -> str:
    """Parse an HTTP URL without trailing slash. URLs are printed, so credentials are rejected."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} has no scheme. Use http:// or https://, such as http://{text}")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError(
            f"{text!r} has spaces, control characters or non-ASCII characters, which a URL cannot contain"
        )
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            "a URL must not contain a user name or password, because URLs are printed. Set PODIUM_API_KEY instead"
        )
    if not parts.hostname or parts.port == 0:  # `port` raises if it is not a number
        raise ValueError(f"{text!r} has no valid host and port. Use a URL such as http://127.0.0.1:8000")
    return text.rstrip("/")
