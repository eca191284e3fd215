"""Virtual environment of a peer, which is another product that the bench compares Podium with.

The environment is a separate folder under build/. It is installed from a lock file in this folder, without
dependency resolution: the lock names every package with the hashes of its files. A stamp file marks a
complete environment, so that it is not installed again.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loadtest.rig import ROOT, RigError

REPORT_EVERY_S = 10.0


@dataclass(frozen=True)
class PeerEnvironment:
    """Environment in which a peer is installed.

    Args:
        name: the peer's display name.
        size: the environment's size on disk, for messages.
        lock: the path of the lock file.
        venv: the folder of the environment.
    """

    name: str
    size: str
    lock: Path
    venv: Path

    @property
    def is_built(self) -> bool:
        """True if the environment is complete and was made from this lock by this Python."""
        stamp = self.venv / "podium-stamp"
        return stamp.exists() and stamp.read_text() == self._stamp

    @property
    def _stamp(self) -> str:
        return f"{sys.version_info[:2]} {self.venv}\n{self.lock.read_text()}"

    def build(self, say: Callable[[str], None]) -> None:
        """Create the environment unless it exists.

        Args:
            say: called with progress messages.

        Raises:
            RigError: pip failed; the message ends with its output.
        """
        if self.is_built:
            return
        say(f"Creating the environment of {self.name} in {self.venv} ({self.size}; only once) ...")
        shutil.rmtree(self.venv, ignore_errors=True)
        self.venv.parent.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.venv / "bin" / "python")]
        with self.venv.with_name(f"{self.venv.name}-pip.log").open("wb") as output:
            self._run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], output, say)
            self._run(
                [*pip, "install", "--no-input", "--no-deps", "--require-hashes", "-r", str(self.lock)],
                output,
                say,
            )
        (self.venv / "podium-stamp").write_text(self._stamp)

    def _run(self, command: list[str], output: IO[bytes], say: Callable[[str], None]) -> None:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(REPORT_EVERY_S)
                    break
                say(f"  still installing, {time.monotonic() - began_s:.0f} s")
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            tail = "\n".join(Path(output.name).read_text(errors="replace").splitlines()[-6:])
            raise RigError(
                f"The environment of {self.name} could not be created:\n{tail}\nFull log: {output.name}\n"
                "Check that the package index can be reached (see `pip config list`) and that 1 GB of disk is free, or skip this part with --only."
            )


def peer_environment(name: str, folder: str, size: str) -> PeerEnvironment:
    """Return the environment that is installed from `folder`.lock into build/`folder`."""
    lock = Path(__file__).with_name(f"{folder}.lock")
    return PeerEnvironment(name, size, lock, ROOT / "build" / folder)
