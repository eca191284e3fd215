"""Set-up: `.venv` with what is asked for, the project in it, and the local models. `make setup` runs it
before any package is there.

In stages: the base packages always; those of a vLLM engine and the local models only where the settings
need them (`needs.py`); those of development and learning only for the targets that use them. What is
already there is never taken away. The local models are made while the packages of the engine are installed.

Run by whatever `python3` there is: standard library only. Quick when nothing changed (stamps inside
`.venv`), safe to interrupt at any moment (the next run goes on), one at a time (a lock). Every failure says
what happened and what to do.

Knows uv, files and disks; knows nothing of Ray or of settings.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.local import local_models, uv
from cluster.local.model import ModelError
from cluster.local.progress import Progress
from cluster.local.remedies import explain
from cluster.local.uv import LEFT_OUT, LOCK, PYTHON, ROOT, UV, VENV

BUILD = ROOT / "build"
LOG, MODELS_LOG = BUILD / "setup.log", BUILD / "setup-models.log"
OLDEST_PYTHON = (3, 11)
MODEL_BYTES = 700_000_000
NOT_COMPILED = r"/(tests?|testing|models|types|pip|setuptools)/"
"""Sources that no start of Podium imports, or few of thousands of them: half of all there are."""


class SetupError(Exception):
    """Set-up cannot go on; the message says what failed and what to do."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Packages that are installed together.

    Args:
        name: what progress calls it.
        extras: of pyproject.toml, beside the project's own dependencies.
        n_bytes: what all of it takes, unpacked.
    """

    name: str
    extras: tuple[str, ...]
    n_bytes: int

    @property
    def stamp(self) -> Path:
        """The file that says what was installed: nothing in it where that was interrupted."""
        return VENV / f"podium-{self.name}-stamp"

    @property
    def state(self) -> str | None:
        """What the stamp says; None where there is none."""
        try:
            return self.stamp.read_text()
        except OSError:
            return None


BASE = Stage("base", (), 700_000_000)
CPU = Stage("cpu", ("cpu",), 3_000_000_000)
DEV = Stage("dev", ("dev",), 1_500_000_000)
LEARNING = Stage("learning", ("cpu", "dev", "training", "evaluation"), 4_200_000_000)
STAGES = (BASE, CPU, DEV, LEARNING)


# -------------------------------------------------------------------------------- saying and doing


def run(command: Sequence[str], phase: str, *, must_succeed: bool = True) -> None:
    """Run `command` into the log and show its last line.

    Raises:
        SetupError: it ended with an error; says what it said and what that usually means.
    """
    progress = Progress(f"set-up: {phase}")
    environment = uv.environment() if UV.exists() else None
    with LOG.open("a+b") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        with ending(process):
            while process.poll() is None:
                progress.show(last_line(LOG, start))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        log.seek(start)
        output = log.read().decode(errors="replace")
    if process.returncode != 0 and must_succeed:
        progress.end()
        raise SetupError(explain(output, phase, LOG))
    progress.finish()


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def last_line(log: Path, start: int = 0) -> str:
    """What a command said last, from byte `start` of its log on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")


def ask(*command: str) -> str:
    """What a command that takes no time prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


# -------------------------------------------------------------------------------- the phases


def check_python() -> None:
    """This Python is new enough, or the message names one on the PATH that is."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    better = next((name for name in ("python3.11", "python3.12", "python3.13") if shutil.which(name)), None)
    remedy = (
        f"Run `make PYTHON={better} setup`."
        if better
        else "Install Python 3.11, then `make PYTHON=python3.11 setup`."
    )
    raise SetupError(f"Python {sys.version.split()[0]} is too old: Podium needs 3.11 or newer.\n{remedy}")


def make_venv() -> None:
    """A `.venv` of this Python with the pinned uv; a broken one is replaced."""
    wanted = uv.uv_requirement()
    version = ask(str(UV), "--version").split()[1:2] if UV.exists() and PYTHON.exists() else []
    if version == [wanted.partition("==")[2]]:
        return
    pip = [str(PYTHON), "-m", "pip"]
    if (
        not PYTHON.exists()
        or subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode
    ):
        shutil.rmtree(VENV, ignore_errors=True)
        try:
            run([sys.executable, "-m", "venv", str(VENV)], "making .venv")
        except SetupError as error:
            hint = "On Debian and Ubuntu, `apt install python3-venv` brings what may be missing."
            raise SetupError(f"{error}\n{hint}") from None
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    run([*pip, "install", *quiet, wanted], "installing the installer")


def check_disk(stage: Stage) -> None:
    """Enough free bytes for what `stage` lacks, in `.venv` and uv's cache, or which disk lacks how many."""
    here = 1024 * int(ask("du", "-sk", str(VENV)).split()[0])
    need = {ROOT: max(0, stage.n_bytes - here) + (MODEL_BYTES if "cpu" in stage.extras else 0)}
    cache = Path(ask(str(UV), "cache", "dir").strip())
    cache = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if cache.stat().st_dev != ROOT.stat().st_dev:
        need[cache] = max(0, stage.n_bytes - here)
    for place, wanted_bytes in need.items():
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < wanted_bytes:
            raise SetupError(
                f"Not enough disk space under {place}: {free_bytes / 1e9:.1f} GB free, "
                f"{wanted_bytes / 1e9:.1f} GB needed.\nFree some, or clone to a larger disk"
                + (", or point UV_CACHE_DIR elsewhere." if place == cache else ".")
            )


def target_state() -> str:
    """What `.venv` is made from: lock, project file, place and Python version, as one hash."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for path in (LOCK, LEFT_OUT, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def add(stage: Stage) -> None:
    """The packages of `stage`, and the project itself, editable; nothing where its stamp is right."""
    wanted = target_state()
    if PYTHON.exists() and stage.state == wanted:
        return
    make_venv()
    if stage.state is None:
        check_disk(stage)
    was_interrupted = any(each.state == "" for each in STAGES)  # a package may be half there
    stage.stamp.write_text("")
    extras = f"[{','.join(stage.extras)}]" if stage.extras else ""
    options = ["--config-settings-package", "podium:editable_mode=compat", "--build-constraints", str(LOCK)]
    if was_interrupted:
        options.append("--reinstall")
    command = uv.pip_command("install", *uv.lock_options(), *options, "--editable", f".{extras}")
    run(command, f"installing {stage.name} packages")
    # Some packages have files that are no Python, which it counts as an error.
    compile_all = ["-m", "compileall", "-qq", "-j", "0", "-x", NOT_COMPILED, str(VENV / "lib")]
    run([str(PYTHON), *compile_all], "compiling them to bytecode", must_succeed=False)
    for each in STAGES:
        if set(each.extras) <= set(stage.extras):
            each.stamp.write_text(wanted)


def ask_needs(served: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether what is served needs an engine, and which local models; `needs.py` says it inside `.venv`.

    Args:
        served: its arguments: the settings file, and what the command line puts in its place.

    Raises:
        SetupError: they cannot be used.
    """
    command = [str(PYTHON), "-m", "cluster.local.needs", *served]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError(answer.stderr.strip())
    needs = json.loads(answer.stdout)
    return needs["engine"], needs["models"]


@contextlib.contextmanager
def making_models(names: Sequence[str]) -> Generator[None]:
    """The local models among `names` are made beside what is done in the block, and are there at its end.

    Raises:
        SetupError: one could not be made.
    """
    missing = local_models.missing(names)
    if not missing:
        yield
        return
    command = [str(PYTHON), "-m", "cluster.local.local_models", *missing]
    with MODELS_LOG.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
    with ending(process):
        yield
        progress = Progress("set-up: making the local models")
        while process.poll() is None:
            progress.show(last_line(MODELS_LOG))
            time.sleep(0.2)
        if process.returncode != 0:
            progress.end()
            output = MODELS_LOG.read_text(errors="replace")
            raise SetupError(explain(output, "making the local models", MODELS_LOG))
        progress.finish(", ".join(missing))


@contextlib.contextmanager
def one_at_a_time() -> Generator[None]:
    """Hold the set-up lock of this checkout; a second run waits and says so."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("a+") as held:
        waited_s = 0
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited_s % 10 == 0:
                    held.seek(0)
                    print(f"set-up: waiting for another set-up here (pid {held.read().strip()})", flush=True)
                time.sleep(1)
                waited_s += 1
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def set_up(served: Sequence[str], *, dev: bool, learning: bool) -> None:
    """All stages that are asked for.

    Args:
        served: what is to be served, see `ask_needs`; empty: nothing is.
        dev: with the packages of checks and load tests.
        learning: with all packages and both local models.
    """
    add(BASE)
    engine, models = False, list(local_models.LOCAL_MODELS) if learning else []
    if served and not learning:
        engine, models = ask_needs(served)
    with making_models(models):
        if engine:
            add(CPU)
        if learning or dev:
            add(LEARNING if learning else DEV)


def main() -> int:
    """Command line: 0 when everything is in place."""
    parser = argparse.ArgumentParser(
        prog="make setup", description="Build .venv, and the local models where they are served."
    )
    parser.add_argument("--settings", help="with what it takes to serve this file")
    parser.add_argument("--model", help="served in place of the file's local models")
    parser.add_argument("--conductor", help="the worker that leads in place of the file's conductor")
    parser.add_argument("--dev", action="store_true", help="with what checks and load tests need")
    parser.add_argument("--learning", action="store_true", help="with everything")
    options = parser.parse_args()
    given = {"--model": options.model, "--conductor": options.conductor}
    overrides = [f"{option}={value}" for option, value in given.items() if value]
    served = [options.settings, *overrides] if options.settings else []
    try:
        check_python()
        with one_at_a_time():
            set_up(served, dev=options.dev, learning=options.learning)
    except (SetupError, ModelError) as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `make setup` goes on from here.", file=sys.stderr)
        return 130
    except OSError as error:
        is_full = error.errno == 28
        what = (
            "The disk is full." if is_full else f"This account may not write under {ROOT}, or a disk failed."
        )
        print(f"\nSet-up stopped: {error}\n{what}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
