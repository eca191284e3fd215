"""`podium cards`: write each worker's card from measurements.

Exit codes: 0 if done; 1 if the settings file could not be written; 2 if the input is invalid. The program
prints names and texts from files without their control characters, because other people may have written
them.
"""

import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from conductor.errors import PodiumError
from evaluation import EvaluationError
from evaluation.cards.measurement import (
    MIN_QUESTIONS,
    CardMeasurement,
    combine,
    measure_recorded,
    measure_results,
)
from evaluation.cards.wording import can_write
from evaluation.recordings import TRAIN_SHARE
from evaluation.results import read_results
from evaluation.spec import share
from podium.command_line.options import option
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import console, inert, table
from serving.settings.edit import Fields, edit_workers

MOST_NAME_CHARS = 100
"""Maximum number of characters of a measured name. The rest is cut off."""

EPILOG = """\
A card names the kinds of question that a worker is best and worst at, with the share of right answers, and the
number of graded questions. A kind is named only if its 95 % interval excludes the worker's overall share.
Only the training side of a recorded pool is read. The held-out side judges conductors, which must not read
cards made from it. Records of runs have no grades, but they give cost and speed.

Examples:
  podium cards --results build/eval --records http://127.0.0.1:8000
  podium cards --recorded 'recorded:recorded.jsonl.gz?part=train' --into pool.yaml --replace
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOptions:
    """Options of `podium cards`: the sources of the measurements, and the destination of the cards."""

    results: Annotated[
        list[Path],
        Option(
            metavar="FOLDER...",
            help="--out folder of `podium eval`; its strategies single:NAME are used",
            show_default=False,
        ),
    ] = field(default_factory=list[Path])
    recorded: Annotated[
        str | None,
        Option(metavar="SET", help="training side of a recorded pool, such as 'recorded:FILE?part=train'"),
    ] = None
    records: Annotated[
        list[str],
        Option(
            metavar="PLACE...",
            help="URL of a running Podium (set PODIUM_API_KEY if it needs a key), "
            "or a file with the response of GET /v1/workflows",
            show_default=False,
        ),
    ] = field(default_factory=list[str])
    settings: Annotated[
        Path | None, Option(metavar="FILE", help="show the cards for the workers of this settings file")
    ] = None
    into: Annotated[
        Path | None,
        Option(metavar="FILE", help="write the cards into this settings file and leave the rest unchanged"),
    ] = None
    replace: Annotated[bool, Option("--replace", help="with --into: overwrite existing cards")] = False
    named: Annotated[
        bool,
        Option(
            "--named",
            help="start each card with the worker's name, for a conductor that was trained on these workers",
        ),
    ] = False
    print_yaml: Annotated[
        bool, Option("--print-yaml", help="print a patch of settings, for example for user_config")
    ] = False
    workers: Annotated[
        list[str] | None,
        Option(metavar="NAME...", help="only these workers", show_default="all measured workers"),
    ] = None
    name: Annotated[
        list[str],
        Option(
            metavar="MEASURED=WORKER...",
            help="the worker that a measured name stands for, if names differ",
            show_default=False,
        ),
    ] = field(default_factory=list[str])
    train_share: Annotated[
        float,
        Option(
            parser=option(share),
            metavar="SHARE",
            help="training share of the recorded questions in --results",
        ),
    ] = TRAIN_SHARE


main = Program("podium cards")


@main.command(epilog=EPILOG)
def run(options: CardOptions) -> int:
    """Write each worker's card from measurements."""
    try:
        return _run(options, dict(map(_renaming, options.name)))
    except PodiumError as exc:
        raise CommandError(exc.message, 2) from exc
    except OSError as exc:  # no other file is written
        raise CommandError(f"{options.into} is unchanged: {exc}.") from exc


def _run(options: CardOptions, worker_of: Mapping[str, str]) -> int:
    from evaluation.cards.settings_cards import changes, match_workers, write_cards
    from serving.settings.settings import load

    if options.into and options.settings:
        raise EvaluationError(
            "--settings and --into cannot be used together. Use --into, which also shows the cards."
        )
    measured, notes = _measure(options)
    path = options.into or options.settings
    settings = load(path) if path else None
    if settings:
        measured, unmatched = match_workers(measured, settings, worker_of)
        if unmatched:
            notes.append(
                f"{path} has no worker for these measured names: {', '.join(unmatched)}. Match them with --name MEASURED=WORKER."
            )
    elif worker_of:
        raise EvaluationError(
            "--name needs --settings or --into, because it matches measured names to the workers of a settings file."
        )
    measured = _only(options.workers, measured)
    cards = write_cards(measured, settings, named=options.named)
    notes += [_why_none(name, each) for name, each in measured.items() if name not in cards]
    if not cards and not any(each.tokens_per_s or each.usd_per_call for each in measured.values()):
        raise EvaluationError(" ".join(["There are not enough measurements for any card.", *notes]))
    with _standard_output():
        if options.print_yaml:
            plain: Fields = {name: {"card": card} for name, card in cards.items()}
            _print_patch(changes(measured, cards, settings, replace=True).fields if settings else plain)
        else:
            _show(measured, cards)
    if options.into and settings:
        update = changes(measured, cards, settings, replace=options.replace)
        if update.unchanged:
            notes.append(f"Kept unchanged: {', '.join(update.unchanged)}. Use --replace to overwrite.")
        notes.append(_write(options.into, update.fields))
    for note in notes:
        _say(note)
    return 0


def _measure(options: CardOptions) -> tuple[dict[str, CardMeasurement], list[str]]:
    """Return all measurements by the name under which they were recorded, and notes for the user."""
    from evaluation.cards.records import measure_records, read_records

    sources: list[Mapping[str, CardMeasurement]] = []
    notes: list[str] = []
    if options.results:
        files = [each / "results.jsonl" if each.is_dir() else each for each in options.results]
        results = [each for file in files for each in read_results(file)]
        measured, left_out = measure_results(results, options.train_share)
        sources.append(measured)
        if left_out:
            notes.append(f"Skipped {left_out} held-out questions of a recorded pool.")
    if options.recorded:
        sources.append(measure_recorded(options.recorded))
    if options.records:
        sources.append(measure_records([run for place in options.records for run in read_records(place)]))
    if not sources:
        raise EvaluationError("No source of measurements was given. Use --results, --recorded or --records.")
    return combine([{_plain(name): each} for source in sources for name, each in source.items()]), notes


def _plain(name: str) -> str:
    """Return a measured name as one line without control characters."""
    return " ".join(inert(name).split())[:MOST_NAME_CHARS]


def _only(names: Sequence[str] | None, measured: dict[str, CardMeasurement]) -> dict[str, CardMeasurement]:
    if names is None:
        return measured
    if unknown := [name for name in names if name not in measured]:
        raise EvaluationError(f"{unknown[0]!r} has no measurements. Choose from: {', '.join(measured)}.")
    return {name: measured[name] for name in names}


def _why_none(name: str, measured: CardMeasurement) -> str:
    graded = measured.overall.n if measured.overall else 0
    return f"No card for {name}, because it has {graded or 'no'} graded questions. A card needs at least {MIN_QUESTIONS}."


@contextmanager
def _standard_output() -> Generator[None]:
    """Flush the output of the block. A reader that closes the pipe (`| head`) is no error, a full disk is."""
    try:
        yield
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the buffer is flushed again at exit
        if not isinstance(exc, BrokenPipeError):
            raise EvaluationError(f"Cannot print the cards: {exc.strerror}. Nothing was written.") from exc


def _print_patch(fields: Fields) -> None:
    import yaml

    patch = {"workers": [{"name": name, **values} for name, values in fields.items()]}
    sys.stdout.write(yaml.safe_dump(patch, sort_keys=False, allow_unicode=True, width=1000))


def _show(measured: Mapping[str, CardMeasurement], cards: Mapping[str, str]) -> None:
    from evaluation.cards.settings_cards import usd

    rows = table("worker", "card", right=("graded", "US$ per call", "tokens/s"))
    for name, each in measured.items():
        rows.add_row(
            name,
            cards.get(name, "–"),
            _question_counts(each) if can_write(each) else "–",
            "unknown" if each.usd_per_call is None else usd(each.usd_per_call),
            f"{each.tokens_per_s:.3g}" if each.tokens_per_s else "–",
        )
    out = console()
    with out.capture() as shown:
        out.print(rows)
    sys.stdout.write(shown.get())


def _question_counts(measured: CardMeasurement) -> str:
    """Return the number of questions behind each share on the card."""
    from evaluation.cards.wording import BEST, WORST, strengths, weaknesses

    claims = [*strengths(measured, BEST), *weaknesses(measured, WORST)]
    return ", ".join(str(each.n) for _, each in claims) or "–"


def _write(path: Path, fields: Fields) -> str:
    """Write the fields into the settings file and return a summary."""
    if not fields:
        return f"{path} is unchanged."
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
    return f"Set {count} field{'s' * (count > 1)} in {path}, for {', '.join(fields)}."


def _renaming(text: str) -> tuple[str, str]:
    measured, equals, worker = text.rpartition("=")
    if not equals or not measured or not worker:
        raise BadParameter(f"{text!r} is invalid. Use MEASURED=WORKER", param_hint="--name")
    return measured, worker


def _say(text: str) -> None:
    print(inert(text), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
