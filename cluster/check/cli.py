"""`podium check`: exit code 0 where the files agree, 1 where something does not fit or cannot be read.

What reads and checks them imports Ray and Pydantic, so it is imported after the options are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from program.options import exact_rate

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    from rich.console import Console

    from cluster.check import cost
    from cluster.check.case import case_of
    from cluster.check.findings import CheckError
    from cluster.check.tables import show

    out = console or Console()
    try:
        case = case_of(*map(_short, (options.settings, options.serve, options.cluster, options.prices)))
        faults = show(case, cost.shares(options.mix, case.prices.requests), options.rps, out)
    except CheckError as error:
        out.print(f"[red]{error}[/red]")
        return 1
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="podium check",
        description="Says whether pool, Serve config and machines agree, and what they cost. Reads files only.",
        epilog="Exit code: 0 where they agree, 1 where they do not or a file cannot be read. Example: podium check",
    )
    parser.add_argument("--settings", type=Path, default=ROOT / "cluster/gpu.yaml", help="what is served")
    parser.add_argument(
        "--serve",
        type=Path,
        default=ROOT / "cluster/gpu.serve.yaml",
        help="the Serve config, or a RayService",
    )
    parser.add_argument(
        "--cluster", type=Path, default=ROOT / "ray_cluster.yaml", help="`ray up`'s YAML, or a RayService"
    )
    parser.add_argument(
        "--prices", type=Path, default=ROOT / "cluster/prices.yaml", help="prices and tokens of your own"
    )
    parser.add_argument(
        "--mix", default="chat=0.7,ultra=0.3", help="shares of the kinds of requests (default: %(default)s)"
    )
    parser.add_argument(
        "--rps", type=exact_rate, default=None, help="requests a second that share the machines"
    )
    return parser


def _short(path: Path) -> Path:
    """As it is written in the repository, where the command is run from there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
