"""`podium cards`: write each worker's card from what was measured.

Exit codes: 0 done; 1 the settings file could not be written; 2 it cannot be done as asked. Names and words that
somebody else's files give are printed as text that no terminal obeys.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conductor.errors import PodiumError
from evaluation.cards.measurement import (
    MIN_QUESTIONS,
    CardMeasurement,
    combine,
    measure_recorded,
    measure_results,
)
from evaluation.cards.wording import can_write
from evaluation.errors import EvaluationError
from evaluation.recordings import TRAIN_SHARE
from evaluation.results import read_results
from evaluation.spec import share
from program.inert import inert
from serving.settings.edit import Fields, edit_workers

MOST_NAME_CHARS = 100
"""So much of a name that was measured under is kept."""

EPILOG = """\
A card says what a worker is best and worst at, with the share that was right, and how many questions it was
graded on: a kind of question is named only where its 95 % interval lies beyond the worker's overall share.
Of a recorded pool only the training side is read: what is held out judges conductors, and must not be in
what they read. Records of runs have no grades; cost and speed come from them.

examples:
  podium cards --results build/eval --records http://127.0.0.1:8000
  podium cards --recorded 'recorded:recorded.jsonl.gz?part=train' --into pool.yaml --replace
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Show the cards, or write them into a settings file; the exit code."""
    given = parser().parse_args(argv)
    try:
        return run(given)
    except PodiumError as exc:
        return _fail(exc.message, 2)
    except OSError as exc:
        return _fail(f"{given.into} is as it was: {exc}.", 1)  # nothing else is written to


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="podium cards",
        description="Write each worker's card from what was measured.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EPILOG,
    )
    add = parser.add_argument
    add(
        "--results",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="--out of `podium eval`; its strategies single:NAME count",
    )
    add("--recorded", metavar="SET", help="the training side of a recorded pool: 'recorded:FILE?part=train'")
    add(
        "--records",
        nargs="+",
        default=[],
        metavar="PLACE",
        help="a running Podium's URL (a key goes into "
        "PODIUM_API_KEY), or a file of what GET /v1/workflows answered",
    )
    add("--settings", type=Path, metavar="FILE", help="show the cards that fit this settings file")
    add(
        "--into", type=Path, metavar="FILE", help="write them into its workers; the rest of it stays as it is"
    )
    add("--replace", action="store_true", help="with --into: also over cards that somebody has written")
    add(
        "--named",
        action="store_true",
        help="begin each card with its worker's name, by which a conductor trained on these workers knows them",
    )
    add("--print-yaml", action="store_true", help="print a patch of settings, such as for user_config")
    add("--workers", nargs="+", metavar="NAME", help="of these workers only (all that were measured)")
    add(
        "--name",
        nargs="+",
        type=_renaming,
        default=[],
        metavar="MEASURED=WORKER",
        help="who is who, where names differ",
    )
    add(
        "--train-share",
        type=share,
        default=TRAIN_SHARE,
        metavar="SHARE",
        help="the training part of recorded questions in --results (%(default)s)",
    )
    return parser


def run(given: argparse.Namespace) -> int:
    """What the command does.

    Raises:
        PodiumError: it cannot be done as asked; nothing was written.
        OSError: the settings file cannot be written; it is as it was.
    """
    from evaluation.cards.settings_cards import changes, match_workers, write_cards
    from serving.settings.settings import load

    if given.into and given.settings:
        raise EvaluationError("Give --settings or --into, not both; --into shows the cards too.")
    measured, notes = _measure(given)
    path = given.into or given.settings
    settings = load(path) if path else None
    if settings:
        measured, strangers = match_workers(measured, settings, dict(given.name))
        if strangers:
            notes.append(f"No worker of {path} is called {', '.join(strangers)}; --name says who is who.")
    elif given.name:
        raise EvaluationError("--name goes with --settings or --into, whose workers it names.")
    measured = _only(given.workers, measured)
    cards = write_cards(measured, settings, named=given.named)
    notes += [_why_none(name, each) for name, each in measured.items() if name not in cards]
    if not cards and not any(each.tokens_per_s or each.usd_per_call for each in measured.values()):
        raise EvaluationError(" ".join(["There is nothing to write.", *notes]))
    with _standard_output():
        if given.print_yaml:
            plain: Fields = {name: {"card": card} for name, card in cards.items()}
            _print_patch(changes(measured, cards, settings, replace=True).fields if settings else plain)
        else:
            _show(measured, cards)
    if given.into and settings:
        found = changes(measured, cards, settings, replace=given.replace)
        if found.kept:
            notes.append(f"Kept as they are: {', '.join(found.kept)}. --replace overwrites them.")
        notes.append(_write(given.into, found.fields))
    for note in notes:
        _say(note)
    return 0


def _measure(given: argparse.Namespace) -> tuple[dict[str, CardMeasurement], list[str]]:
    """Everything that was measured, by the name it was measured under, and what a reader must know."""
    from evaluation.cards.records import measure_records, read_records

    sources: list[Mapping[str, CardMeasurement]] = []
    notes: list[str] = []
    if given.results:
        kept = [each for folder in given.results for each in read_results(_results_file(folder))]
        measured, left_out = measure_results(kept, given.train_share)
        sources.append(measured)
        if left_out:
            notes.append(f"Left out: {left_out} held-out questions of a recorded pool.")
    if given.recorded:
        sources.append(measure_recorded(given.recorded))
    if given.records:
        sources.append(measure_records([run for place in given.records for run in read_records(place)]))
    if not sources:
        raise EvaluationError("Nothing to write from: give --results, --recorded or --records.")
    return combine([{_plain(name): each} for source in sources for name, each in source.items()]), notes


def _plain(name: str) -> str:
    """A name that a record or a result gives: one line, and nothing that a terminal obeys."""
    return " ".join(inert(name).split())[:MOST_NAME_CHARS]


def _results_file(folder: Path) -> Path:
    return folder / "results.jsonl" if folder.is_dir() else folder


def _only(names: Sequence[str] | None, measured: dict[str, CardMeasurement]) -> dict[str, CardMeasurement]:
    if names is None:
        return measured
    if unknown := [name for name in names if name not in measured]:
        raise EvaluationError(f"Nothing was measured of {unknown[0]!r}; measured: {', '.join(measured)}.")
    return {name: measured[name] for name in names}


def _why_none(name: str, measured: CardMeasurement) -> str:
    graded = measured.overall.n if measured.overall else 0
    return f"No card for {name}: {graded or 'no'} graded questions; a card takes {MIN_QUESTIONS}."


@contextmanager
def _standard_output() -> Generator[None]:
    """What is printed is out at the end. A reader who has seen enough (`| head`) stops nothing.

    Raises:
        EvaluationError: it cannot be printed, such as on a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the buffer still holds
        if not isinstance(exc, BrokenPipeError):
            raise EvaluationError(f"The cards cannot be shown: {exc.strerror}. Nothing was written.") from exc


def _print_patch(fields: Fields) -> None:
    import yaml

    patch = {"workers": [{"name": name, **values} for name, values in fields.items()]}
    sys.stdout.write(yaml.safe_dump(patch, sort_keys=False, allow_unicode=True, width=1000))


def _show(measured: Mapping[str, CardMeasurement], cards: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from evaluation.cards.settings_cards import usd

    table = Table("worker", "card", "graded", "US$ a call", "tokens/s")
    for name, each in measured.items():
        table.add_row(
            name,
            cards.get(name, "–"),
            _rests_on(each) if can_write(each) else "–",
            "unknown" if each.usd_per_call is None else usd(each.usd_per_call),
            f"{each.tokens_per_s:.3g}" if each.tokens_per_s else "–",
        )
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 160
    with console.capture() as shown:
        console.print(table)
    sys.stdout.write(shown.get())


def _rests_on(measured: CardMeasurement) -> str:
    """How many questions each share of the card rests on."""
    from evaluation.cards.wording import BEST, WORST, strengths, weaknesses

    claims = [*strengths(measured, BEST), *weaknesses(measured, WORST)]
    return ", ".join(str(each.n) for _, each in claims) or "–"


def _write(path: Path, fields: Fields) -> str:
    """Write these fields of workers; what was done, in words."""
    if not fields:
        return f"{path} is as it was."
    place = path.resolve()
    with place.open(encoding="utf-8", newline="") as file:
        text = edit_workers(file.read(), fields)
    new = place.with_name(f".{place.name}.new")
    try:
        new.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(place, new)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)
    count = sum(map(len, fields.values()))
    return f"{path}: {count} field{'s' * (count > 1)} set, of {', '.join(fields)}."


def _renaming(text: str) -> tuple[str, str]:
    measured, equals, worker = text.rpartition("=")
    if not equals or not measured or not worker:
        raise argparse.ArgumentTypeError(f"{text!r} is not MEASURED=WORKER")
    return measured, worker


def _say(text: str) -> None:
    print(inert(text), file=sys.stderr)  # noqa: T201


def _fail(message: str, code: int) -> int:
    _say(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
