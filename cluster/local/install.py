"""Set-up: create `.venv` with the needed packages and Podium itself, and make the local models.

Set-up has stages, each of which installs some packages. The base packages are always installed. The packages
of a vLLM engine and the local models are added only if the settings need them (`needs.py`). The packages for
development and for learning are added only for the make targets that use them. Installed packages are never
removed, but a `.venv` whose Python does not start is replaced. While the packages of the engine are
installed, the local models are made and the web console is built.

Stamp files inside `.venv` record what is installed, so set-up is quick if nothing has changed. It can be
interrupted at any time, and the next run continues. A lock allows only one run at a time. Every error says
what happened and what to do.

This module imports only the standard library, because `setup.py` calls it before any package is installed. It
does not depend on Ray or settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.local import console, local_models, uv
from cluster.local.command import BUILD, SetupError, ask, ending, run, wait_for
from cluster.local.model import ModelError
from cluster.local.remedies import explain
from cluster.local.uv import LEFT_OUT, LOCK, PYTHON, ROOT, UV, VENV

MODELS_LOG = BUILD / "setup-models.log"
BASE_BYTES = 700_000_000
EXTRA_BYTES = {
    "console": 210_000_000,
    "cpu": 2_300_000_000,
    "dev": 800_000_000,
    "browser": 170_000_000,
    "site": 110_000_000,
    "training": 200_000_000,
    "evaluation": 200_000_000,
}
"""Unpacked size, in bytes, of the packages that each extra adds to the base packages."""
MODEL_BYTES = 700_000_000
BROUGHT = "setuptools"
"""Package that Python 3.11 adds to a new venv besides pip. The base packages do not need it."""
NOT_COMPILED = "tests?|testing|models|types|pip|setuptools"
"""Pattern of folders that are not compiled to bytecode. They have about half of all files, and a starting
server imports hardly any of them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Packages that are installed together: the project's own dependencies and some extras."""

    name: str
    extras: tuple[str, ...]

    @property
    def stamp(self) -> Path:
        """File that records what was installed. It is empty if the installation was interrupted."""
        return VENV / f"podium-{self.name}-stamp"

    @property
    def state(self) -> str | None:
        """Content of the stamp file, or None if the file does not exist."""
        try:
            return self.stamp.read_text()
        except OSError:
            return None


BASE = Stage("base", ())
CONSOLE = Stage("console", ("console",))
CPU = Stage("cpu", ("cpu",))
DEV = Stage("dev", ("dev",))
LEARNING = Stage("learning", ("cpu", "dev", "training", "evaluation"))
BROWSER = Stage("browser", ("browser",))
SITE = Stage("site", ("site",))
STAGES = (BASE, CONSOLE, CPU, DEV, LEARNING, BROWSER, SITE)


def python_version() -> str:
    """Return the version of the Python in `.venv`, such as `3.11`, or "" if it does not start."""
    return ".".join(ask(str(PYTHON), "--version").removeprefix("Python ").split(".")[:2])


def say_which_python() -> None:
    """Print a note if the Python in `.venv` differs in version from the Python that runs set-up."""
    this, there = f"{sys.version_info[0]}.{sys.version_info[1]}", python_version()
    if there not in ("", this):
        print(
            f"set-up: .venv keeps using Python {there}. To use Python {this}, delete .venv and run set-up again."
        )


def make_venv() -> None:
    """Create `.venv` with pip and the pinned uv. One whose Python starts is kept."""
    pip = [str(PYTHON), "-m", "pip"]
    try:
        if not python_version():
            shutil.rmtree(VENV, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(VENV)], "creating .venv")
        elif not ask(*pip, "--version"):  # created without pip, or interrupted before pip was installed
            run([str(PYTHON), "-m", "ensurepip"], "installing pip")
    except SetupError as error:
        hint = "On Debian and Ubuntu, `apt install python3-venv` may fix this."
        raise SetupError(f"{error}\n{hint}") from None
    if ask(str(UV), "--version").split()[1:2] != [uv.lock_version("uv").partition("==")[2]]:
        quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        BUILD.mkdir(exist_ok=True)
        (requirements := BUILD / "uv.lock").write_text(uv.entry_of("uv"))
        run([*pip, "install", *quiet, "--require-hashes", "-r", str(requirements)], "installing uv")


def bytes_to_add(stage: Stage, done: Collection[Stage]) -> int:
    """Return the unpacked size in bytes of the packages that `stage` adds to the stages in `done`."""
    there = {extra for each in done for extra in each.extras}
    return sum(EXTRA_BYTES[extra] for extra in stage.extras if extra not in there) + (
        0 if done else BASE_BYTES
    )


def check_disk(package_bytes: int, model_bytes: int = 0) -> None:
    """Check the disks' space for packages in `.venv` and uv's cache, and for models. The SetupError names the
    disk.
    """
    need = {ROOT: package_bytes + model_bytes}
    cache = Path(ask(str(UV), "cache", "dir").strip())
    cache = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if cache.stat().st_dev != ROOT.stat().st_dev:
        need[cache] = package_bytes
    for place, wanted_bytes in need.items():
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < wanted_bytes:
            raise SetupError(
                f"Not enough disk space at {place}: {free_bytes / 1e9:.1f} GB are free, but "
                f"{wanted_bytes / 1e9:.1f} GB are needed.\nFree some space, or clone the repository to a larger disk"
                + (", or set UV_CACHE_DIR to a folder on another disk." if place == cache else ".")
            )


def target_state() -> str:
    """Return a hash of everything that determines `.venv`: lock, project file, folder and Python version."""
    digest = hashlib.sha256(f"{python_version()} {ROOT}".encode())
    for path in (LOCK, LEFT_OUT, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def was_interrupted() -> bool:
    """Return whether an installation was interrupted, so that a package may be incomplete."""
    return any(each.state == "" for each in STAGES)


def add(stage: Stage) -> None:
    """Install the packages of `stage` and the project itself (editable), unless its stamp is up to date."""
    if stage.state == target_state():
        return
    make_venv()
    if stage.state is None:
        done = [each for each in STAGES if each.state]
        check_disk(bytes_to_add(stage, done), MODEL_BYTES if "cpu" in stage.extras else 0)
    covered = [each for each in STAGES if set(each.extras) <= set(stage.extras)]
    extras = f"[{','.join(stage.extras)}]" if stage.extras else ""
    reinstall: list[str] = []
    touched = [stage]
    if was_interrupted():
        reinstall = ["--reinstall"]
        touched = covered  # their packages are removed and installed again
    for each in touched:
        each.stamp.write_text("")
    has_brought = any(VENV.glob(f"lib/python*/site-packages/{BROUGHT}"))
    pinned = [uv.lock_version(BROUGHT)] if has_brought else []
    hashed = uv.pip_command("install", *uv.hash_options(stage.extras), *reinstall, *pinned)
    run(hashed, f"installing {stage.name} packages", environment=uv.environment())
    own = ["--config-settings-package", "podium:editable_mode=compat", "--editable", f".{extras}"]
    run(
        uv.pip_command("install", *uv.lock_options(), *own), "installing Podium", environment=uv.environment()
    )
    # Some packages have .py files that are not valid Python, which compileall reports as an error.
    run(compile_command(VENV / "lib"), "compiling packages to bytecode", must_succeed=False)
    for each in covered:
        each.stamp.write_text(target_state())


def compile_command(folder: Path) -> list[str]:
    """Return the command that compiles the packages in `folder` to bytecode on all cores."""
    left_out = rf"^{re.escape(str(folder))}/.*/({NOT_COMPILED})/"  # only names below `folder`
    return [str(PYTHON), "-m", "compileall", "-qq", "-j", "0", "-x", left_out, str(folder)]


def ask_needs(served: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether the settings need an engine, and their local models, from `needs.py` inside `.venv`.
    `served` has its arguments.
    """
    command = [str(PYTHON), "-m", "cluster.local.needs", *served]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError(answer.stderr.strip())
    needs = json.loads(answer.stdout)
    return needs["engine"], needs["models"]


@contextlib.contextmanager
def making_models(names: Sequence[str]) -> Generator[None]:
    """Make the missing local models in parallel with the block, and wait for them at its end."""
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
        progress = wait_for(process, "creating the local models", MODELS_LOG)
        if process.returncode != 0:
            progress.end()
            output = MODELS_LOG.read_text(errors="replace")
            raise SetupError(explain(output, "creating the local models", MODELS_LOG))
        progress.finish(", ".join(missing))


@contextlib.contextmanager
def one_at_a_time() -> Generator[None]:
    """Lock set-up in this checkout. A second run prints that it waits for the first one."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("a+") as lock:
        waited_s = 0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited_s % 10 == 0:
                    lock.seek(0)
                    print(
                        f"set-up: waiting for another set-up of this checkout (pid {lock.read().strip()})",
                        flush=True,
                    )
                time.sleep(1)
                waited_s += 1
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """Options of set-up in addition to the settings to serve.

    Args:
        learning: whether to install the packages for training and evaluation, and both local models.
        console: whether to build the web console, and to fail if that is not possible. The console is also
            built for a server, but then a failure is only printed.
    """

    dev: bool = False
    learning: bool = False
    console: bool = False
    browser: bool = False
    site: bool = False


def set_up(served: Sequence[str], options: SetupOptions) -> None:
    """Install all needed stages, make the local models and build the console, as `install` does."""
    say_which_python()
    add(BASE)
    engine, models = False, list(local_models.LOCAL_MODELS) if options.learning else []
    if served and not options.learning:
        engine, models = ask_needs(served)
    optional = ((CPU, engine), (DEV, options.dev)) if not options.learning else ((LEARNING, True),)
    stages = [
        stage
        for stage, is_wanted in (*optional, (BROWSER, options.browser), (SITE, options.site))
        if is_wanted
    ]
    if was_interrupted():  # making the models needs NumPy, which is reinstalled at this moment
        for stage in stages:
            add(stage)
    if options.console:
        add(CONSOLE)
        console.build_now()
    with console.building(lambda: add(CONSOLE), is_needed=bool(served)), making_models(models):
        for stage in stages:
            add(stage)


def install(served: Sequence[str], options: SetupOptions) -> int:
    """Run set-up and return the exit code. `served` are settings and overrides, or empty to serve nothing."""
    try:
        with one_at_a_time():
            set_up(served, options)
    except (SetupError, ModelError) as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run `make setup` to continue.", file=sys.stderr)
        return 130
    except OSError as error:
        is_full = error.errno == 28
        cause = (
            "The disk is full. Free some space, and run `make setup` again."
            if is_full
            else f"Check that this account may write to {ROOT} and that the disk works, and run `make setup` again."
        )
        print(f"\nSet-up stopped: {error}\n{cause}", file=sys.stderr)
        return 1
    return 0
