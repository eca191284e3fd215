"""Set-up: `.venv` by the lock files, the project in it, and the local models. `make setup`.

In stages: the base packages always; those of a vLLM engine and the local models only where the settings need them (`cluster.local.needs`);
those of development and learning only for the targets that use them. What is already there is never taken away.

Standard library only, run by whatever `python3` there is. Quick when nothing changed (stamps inside `.venv`), safe
to interrupt at any moment (the next run finds and reinstalls what was left half-written), one at a time (a lock).
Every failure says what happened and what to do.

Knows pip, files and disks; knows nothing of Ray, settings or models beyond calling `cluster.local.needs` and `cluster.local.model`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.local.progress import Progress
from cluster.local.venv import (
    BASE_LOCK,
    CPU_LOCK,
    DEV_LOCK,
    LEARNING_LOCK,
    PIP_LOCK,
    PYTHON,
    ROOT,
    VENV,
    installed,
    locked_names,
    read_stamp,
    repair,
    site_packages,
    stamp_of,
    wanted_stamp,
)

BUILD = ROOT / "build"
LOG = BUILD / "setup.log"

OLDEST_PYTHON = (3, 11)
ROOM_BYTES = {
    BASE_LOCK: 700_000_000,
    CPU_LOCK: 3_000_000_000,
    DEV_LOCK: 800_000_000,
    LEARNING_LOCK: 800_000_000,
}
"""What the packages of a lock take, unpacked."""
PIP_TEMP_BYTES = 800_000_000  # pip unpacks the largest wheel beside what it downloaded
MODEL_BYTES = 700_000_000
UNWANTED = (
    "torchvision",
    "torchaudio",
    "torchcodec",
)  # CUDA builds that break a CPU torch; see requirements/
MODEL, CONDUCTOR = "models/smollm2-135m", "models/smollm2-135m-conductor"
LOCAL_MODELS = {MODEL, CONDUCTOR}
"""What set-up makes, by the names that settings have for it."""


class SetupError(Exception):
    """Set-up cannot go on; the message says what failed and what to do."""


# ------------------------------------------------------------------------------------------------ saying and doing


def run(
    command: list[str], progress: Progress, tell: Callable[[], str] | None = None, doing: str = ""
) -> str:
    """Run `command` into the log, keeping `progress` alive; gives its output.

    Raises:
        SetupError: it ended with an error; says what pip said and what that usually means.
    """
    start = LOG.stat().st_size if LOG.exists() else 0
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            while process.poll() is None:
                progress.show(tell() if tell else doing)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    with LOG.open("rb") as log:
        log.seek(start)
        output = log.read().decode(errors="replace")
    if process.returncode != 0:
        if progress.live:
            print(flush=True)
        raise SetupError(explain(output, progress.phase))
    return output


REMEDIES = (
    (
        r"gcc.*(not found|No such file)|Python\.h|command '.*(cc|gcc|g\+\+)' failed",
        (
            "A package of training and evaluation (pycosat) is compiled here and needs a C compiler and Python's headers:\n"
            "on Debian and Ubuntu, `apt install gcc python3-dev`. `make serve` and `make demo` do without."
        ),
    ),
    (
        r"No space left on device|Errno 28",
        "The disk is full. Free some space (6 GB are needed with local models), then run `make setup` again.",
    ),
    (
        r"Permission denied|Read-only file system|Errno 13|Errno 30",
        f"This account may not write under {ROOT}.",
    ),
    (
        r"resolve|NewConnectionError|Max retries|Connection|timed out|Errno -[235]|SSLError|ProxyError",
        (
            "The package index cannot be reached. `pip config list` shows which one is asked; check network and proxy,\n"
            "then run `make setup` again: it goes on where it stopped."
        ),
    ),
    (
        r"No matching distribution|Could not find a version",
        (
            "The package index has no build of that version for this Python and machine. Linux on x86-64 or arm64 with\n"
            "Python 3.11 is what the lock was made on. For torch, name PyTorch's own CPU index in PIP_EXTRA_INDEX_URL\n"
            "(pytorch.org, Get Started, CPU, shows its address)."
        ),
    ),
)


def explain(output: str, phase: str) -> str:
    """What the command said last, what that means, and where all of it is."""
    tail = "\n".join(f"    {line[:200]}" for line in output.strip().splitlines()[-8:])
    remedy = next(
        (text for pattern, text in REMEDIES if re.search(pattern, output)), "Run `make setup` again."
    )
    return f"{phase} failed:\n{tail}\n\n{remedy}\nThe whole output: {LOG}"


# ------------------------------------------------------------------------------------------------ the phases


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


def check_disk(lock: Path) -> None:
    """Enough free bytes where the packages of `lock` will be written, or which disk lacks how many."""
    temp = Path(tempfile.gettempdir())
    names = set(locked_names(lock))
    missing = len(names - installed().keys()) / len(names)
    need = {ROOT: 100_000_000 + int(ROOM_BYTES[lock] * missing) + (MODEL_BYTES if lock == CPU_LOCK else 0)}
    if temp.stat().st_dev == ROOT.stat().st_dev:
        need[ROOT] += PIP_TEMP_BYTES
    else:
        need[temp] = PIP_TEMP_BYTES
    for place, wanted_bytes in need.items():
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < wanted_bytes:
            raise SetupError(
                f"Not enough disk space under {place}: {free_bytes / 1e9:.1f} GB free, "
                f"{wanted_bytes / 1e9:.1f} GB needed.\nFree some, or clone to a larger disk"
                + (", or point TMPDIR elsewhere." if place == temp else ".")
            )


def make_venv() -> None:
    """A working `.venv` of this Python; an older or broken one is replaced."""
    works = PYTHON.exists() and site_packages().is_dir()
    works = (
        works
        and subprocess.run(
            [str(PYTHON), "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        == 0
    )
    if works:
        return
    progress = Progress("set-up: making .venv")
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        run([sys.executable, "-m", "venv", str(VENV)], progress)
    except SetupError as error:
        raise SetupError(
            f"{error}\nOn Debian and Ubuntu, `apt install python3-venv` brings what may be missing."
        ) from None
    run([*pip("install"), "-r", str(PIP_LOCK)], progress, doing="a newer pip")
    progress.done()


def install(lock: Path) -> None:
    """Everything in the lock, at its version; live count while pip is silent."""
    names = set(locked_names(lock))
    progress = Progress(f"set-up: installing {lock.stem} packages")
    phase_start = LOG.stat().st_size if LOG.exists() else 0

    def tell() -> str:
        with LOG.open("rb") as log:
            log.seek(phase_start)
            text = log.read().decode(errors="replace")
        seen = re.findall(r"(?:Collecting|Requirement already satisfied:) ([\w.\-]+)", text)
        if "Installing collected packages" in text:
            here = installed()
            newest = max(
                (here[n] for n in names & here.keys()), key=lambda i: i.stat().st_ctime, default=VENV
            )
            return f"[{len(names & here.keys()):3d}/{len(names)}] installing {newest.name.split('-')[0]}"
        return f"[{len(seen):3d}/{len(names)}] fetching {seen[-1] if seen else ''}"

    run([*pip("install"), "--no-deps", "-r", str(lock)], progress, tell)
    unwanted = [name for name in UNWANTED if name in installed()]
    if lock == CPU_LOCK and unwanted:
        run([*pip("uninstall"), "-y", *unwanted], progress, doing=f"taking off {', '.join(unwanted)}")
    progress.done(f"{len(names)} packages")


def check_torch() -> None:
    """The torch that the index gave is the CPU build. Asked where the CPU lock was installed.

    Raises:
        SetupError: it is missing or a CUDA build, which could not even be imported without NVIDIA's libraries.
    """
    where = "PyTorch's own CPU index (pytorch.org, Get Started, CPU, shows its address)"
    version_file = site_packages() / "torch" / "version.py"
    if not version_file.exists():
        raise SetupError(
            f"torch is not in .venv. Run `PIP_EXTRA_INDEX_URL=<address> make setup` with {where}."
        )
    if re.search(r"^cuda[^=]*= *['\"]", version_file.read_text(), re.MULTILINE):
        for info in site_packages().glob("torch-*.dist-info"):
            shutil.rmtree(info)  # so that the next run fetches torch again
        raise SetupError(
            "The package index gave a CUDA build of torch; Podium's local environment needs the CPU build.\n"
            f"That one comes from {where}.\nRun `PIP_EXTRA_INDEX_URL=<address> make setup`. "
            "For a machine with GPUs, install the `gpu` extra in an environment of its own: pip install '.[gpu]'."
        )


def install_project() -> None:
    """Podium itself, editable: the checkout's folders are what is imported."""
    progress = Progress("set-up: installing podium")
    command = [
        *pip("install"),
        "--no-deps",
        "--no-build-isolation",
        "--config-settings",
        "editable_mode=compat",
    ]
    run([*command, "-e", str(ROOT)], progress)
    progress.done()


def pip(verb: str) -> list[str]:
    """The command of `.venv`'s pip, asking nothing and drawing no bars."""
    quiet = ["--disable-pip-version-check", "--no-input"]
    return [str(PYTHON), "-m", "pip", verb, *quiet, *(["--progress-bar", "off"] if verb == "install" else [])]


def make_model() -> None:
    """The local model, by `cluster.local.model` inside `.venv`."""
    from cluster.local import model

    with contextlib.suppress(OSError, ValueError):
        if model.is_ready(model.FOLDER):
            return
    progress = Progress("set-up: making the local model")
    run(
        [str(PYTHON), "-m", "cluster.local.model"],
        progress,
        doing="SmolLM2-135M, 93 MB, then half a minute of conversion",
    )
    progress.done(str(model.FOLDER.relative_to(ROOT)))


def make_conductor() -> None:
    """The local conductor, by `cluster.local.conductor_model` inside `.venv`."""
    from cluster.local import conductor_model, model

    with contextlib.suppress(OSError, ValueError, model.ModelError):
        if conductor_model.is_ready(conductor_model.FOLDER, conductor_model.shipped()):
            return
    progress = Progress("set-up: making the local conductor")
    run(
        [str(PYTHON), "-m", "cluster.local.conductor_model"],
        progress,
        doing="the shipped adapter into its weights",
    )
    progress.done(str(conductor_model.FOLDER.relative_to(ROOT)))


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
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


def add(lock: Path) -> None:
    """The packages of `lock`, and the project beside the base ones; nothing where its stamp says that they are there."""
    stamp = wanted_stamp(lock)
    if read_stamp(lock) == stamp:
        return
    check_disk(lock)
    make_venv()
    stamp_of(lock).unlink(missing_ok=True)
    repair()
    install(lock)
    if lock == CPU_LOCK:
        check_torch()
    if lock == BASE_LOCK:
        install_project()
    stamp_of(lock).write_text(stamp)


def ask_needs(settings: str, model: str | None) -> tuple[bool, list[str]]:
    """Whether `settings` need an engine, and which local models; `cluster.local.needs` says it inside `.venv`.

    Raises:
        SetupError: they cannot be used.
    """
    command = [str(PYTHON), "-m", "cluster.local.needs", settings, *(["--model", model] if model else [])]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError(answer.stderr.strip())
    needs = json.loads(answer.stdout)
    return needs["engine"], needs["models"]


def set_up(settings: str | None, model: str | None, *, dev: bool, learning: bool) -> None:
    """All stages that are asked for.

    Args:
        settings: the file that is to be served; None: none is.
        model: served in place of its local ones.
        dev: with the packages of checks and load tests.
        learning: with all packages and both local models.
    """
    add(BASE_LOCK)
    engine, models = learning, list(LOCAL_MODELS) if learning else []
    if settings and not learning:
        engine, models = ask_needs(settings, model)
    if engine:
        add(CPU_LOCK)
    if dev or learning:
        add(DEV_LOCK)
    if learning:
        add(LEARNING_LOCK)
    if LOCAL_MODELS & set(models):
        make_model()
    if CONDUCTOR in models:
        make_conductor()


def main() -> int:
    """Command line: 0 when everything is in place."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.local.setup",
        description="Build .venv, and the local models where they are served.",
    )
    parser.add_argument("--settings", default=None, help="with what it takes to serve this file")
    parser.add_argument("--model", default=None, help="served in place of the file's local models")
    parser.add_argument("--dev", action="store_true", help="with what checks and load tests need")
    parser.add_argument("--learning", action="store_true", help="with everything")
    options = parser.parse_args()
    try:
        check_python()
        with one_at_a_time():
            set_up(options.settings, options.model, dev=options.dev, learning=options.learning)
    except SetupError as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `make setup` goes on from here.", file=sys.stderr)
        return 130
    except OSError as error:
        what = (
            "The disk is full."
            if error.errno == 28
            else f"This account may not write under {ROOT}, or a disk failed."
        )
        print(f"\nSet-up stopped: {error}\n{what}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
