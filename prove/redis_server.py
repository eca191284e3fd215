"""A real Redis of one's own, started and ended by whoever needs it: proofs and tests."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from cluster.local.processes import free_port


@contextmanager
def running_redis() -> Generator[str]:
    """One with nothing on disk, gone afterwards; gives its address, as a URL."""
    program = shutil.which("redis-server") or _install_redis()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, cwd="/tmp", stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _install_redis() -> str:
    """Where this account may install it without being asked, it does."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "redis-server"]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
    found = shutil.which("redis-server")
    if found is None:
        raise SystemExit("redis-server is needed. Debian: `apt-get install redis-server`.")
    return found
