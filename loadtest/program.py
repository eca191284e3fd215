"""What the command-line programs of these rooms share: options, signals, limits, the machine."""

import argparse
import math
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

Value = TypeVar("Value")


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """`parse` as a type for argparse, which shows the message of this exception only."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return convert


def positive_int(text: str) -> int:
    """An integer from 1 on; ValueError says why it is none."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def rate(text: str) -> float:
    """Requests per second; ValueError says why it is no rate."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"{text!r} is not a rate; write a number of requests per second above 0")
    return number


def rates(text: str) -> list[float]:
    """Rates with commas between them."""
    return [rate(part) for part in text.split(",")]


def url(text: str) -> str:
    """An http address, without a slash at its end."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} has no scheme; write http://{text}")
    return text.rstrip("/")


def restore_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`: a background job of a shell starts with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def allow_open_files(count: int | None = None) -> None:
    """Let this process open `count` files, or as many as the machine allows: each connection is one.

    Raises:
        SystemExit: the machine does not allow `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None:
        wanted = hard
    elif hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(
            f"{count} open files are needed, and `ulimit -H -n` is {hard}: raise it, or open fewer."
        )
    else:
        wanted = count if soft == resource.RLIM_INFINITY else max(soft, count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def machine() -> str:
    """One line that says what a figure was measured on."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {system}, load {os.getloadavg()[0]:.1f}"


def wide_console() -> Console:
    """Standard output; wide enough for tables where it is a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 200)
