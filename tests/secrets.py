"""Secrets for a server's environment, and a search for them in all files that changed since."""

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
    """Return a new secret for each variable."""
    words = {name: f"planted-{uuid.uuid4().hex}" for name in VARIABLES}
    return words | {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={words['OTEL_EXPORTER_OTLP_HEADERS']}"}


def files_with(secrets: Mapping[str, str], since_s: float) -> list[str]:
    """Return `file: variable` for each file written since `since_s` that contains one of `secrets`."""
    needles = {name: value.rpartition("=")[2].encode() for name, value in secrets.items()}
    places: list[str] = []
    for path in _changed(since_s):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # it was removed in the meantime
        places += [f"{path}: {name}" for name, needle in needles.items() if needle in content]
    return places


def listening_beyond_loopback(processes: Iterable[psutil.Process]) -> list[str]:
    """Return `process address:port` for each port that other machines can reach."""
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
    """Run `podium serve` and yield the process once it is ready. Terminate it at the end."""
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
    output = subprocess.run(
        command, capture_output=True, check=False
    ).stdout  # fails if a file was just removed
    return [Path(os.fsdecode(name)) for name in output.split(b"\0") if name]


def now_s() -> float:
    """Return the time of the file systems, which is slightly behind."""
    return time.time() - 1
