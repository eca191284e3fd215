"""Secrets to plant in a server's environment, and the search for them in every file that has changed since."""

import os
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.conftest import PODIUM, ROOT

VARIABLES = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS",
)  # fmt: skip
PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), ROOT / "build")
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
NOT_WRITTEN_BY_A_SERVER = {".venv", ".git", "pip", "uv"}


def planted() -> dict[str, str]:
    """A secret that nobody else has in each variable."""
    words = {name: f"planted-{uuid.uuid4().hex}" for name in VARIABLES}
    return words | {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={words['OTEL_EXPORTER_OTLP_HEADERS']}"}


def files_with(secrets: Mapping[str, str], since_s: float) -> list[str]:
    """`file: variable` for each file written since then that holds one of `secrets`."""
    needles = {name: value.rpartition("=")[2].encode() for name, value in secrets.items()}
    found: list[str] = []
    for path in _changed(since_s):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # gone meanwhile
        found += [f"{path}: {name}" for name, needle in needles.items() if needle in content]
    return found


def listening_beyond_loopback(processes: Iterable[psutil.Process]) -> list[str]:
    """`process address:port` for each port that others could reach."""
    return [
        f"{process.name()} {connection.laddr.ip}:{connection.laddr.port}"
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.ip not in LOOPBACK
    ]


@contextmanager
def serving(
    settings: Path, port: int, environment: Mapping[str, str], *flags: str
) -> Iterator[subprocess.Popen[str]]:
    """`make serve`, set-up aside, from its being ready; ended by whoever entered, or here."""
    command = [PODIUM, "serve", "--settings", str(settings), "--port", str(port), *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Podium is ready" in line:
                break
        yield process
    finally:
        process.terminate()
        process.wait(90)


def _changed(since_s: float) -> list[Path]:
    skipped = " -o ".join(f"-name {name}" for name in sorted(NOT_WRITTEN_BY_A_SERVER))
    places = [str(place) for place in PLACES if place.is_dir()]
    command = [
        "find",
        *places,
        "(",
        *skipped.split(),
        ")",
        "-prune",
        "-o",
        "-type",
        "f",
        "-newermt",
        f"@{since_s}",
        "-print0",
    ]
    found = subprocess.run(
        command, capture_output=True, check=False
    ).stdout  # it fails where a file has just gone
    return [Path(os.fsdecode(name)) for name in found.split(b"\0") if name]


def now_s() -> float:
    """The file systems' clock, which is a little behind."""
    return time.time() - 1
