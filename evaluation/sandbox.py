"""Run a stranger's program and its tests, apart from everything else.

Each program has a process, a session and an empty folder of its own, no environment, limits on CPU time, memory, file size,
open files and further processes, and, where the kernel lets an ordinary user have it, a network namespace without a network. A
process of root's becomes nobody first. Everything it started is killed when its time is over.

What it does NOT protect from: a program that reads files which everybody may read; one that means to forge its own verdict
(it shares the interpreter with its tests); faults of the kernel. Where the namespace is refused (some containers), the
network is there. For programs of people who mean harm, use a virtual machine.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
MEMORY_BYTES = 1024**3
SLACK_S = 5.0
"""Beyond the program's own time, for starting an interpreter on a busy machine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a program.

    Args:
        passed: its tests ran to their end.
        why: in words, where they did not.
        network: whether the network was shut off; None where the child could not say.
    """

    passed: bool
    why: str = ""
    no_network: bool | None = None


async def run_program(
    program: str, tests: str, timeout_s: float = 10.0, memory_bytes: int = MEMORY_BYTES
) -> Verdict:
    """Run `program`, then `tests` in its namespace.

    Args:
        program: Python source.
        tests: Python source that raises where something is wrong.
        timeout_s: of both together, once the interpreter is there; also the limit of CPU time.
        memory_bytes: of the address space.
    """
    token = secrets.token_hex(16)
    given = {
        "program": program,
        "tests": tests,
        "cpu_s": int(timeout_s) + 1,
        "memory_bytes": memory_bytes,
        "token": token,
    }
    with tempfile.TemporaryDirectory(prefix="podium-code-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: S103, PTH101  (it is empty, and its owner-to-be may be nobody)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(CHILD), cwd=folder, env={}, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(
                process.communicate(json.dumps(given).encode()), timeout_s + SLACK_S
            )
        except TimeoutError:
            return Verdict(False, f"it ran past {timeout_s:g} s")
        finally:
            _kill(process.pid)
            await process.wait()
    return _verdict(said, token, process.returncode)


def _kill(pid: int) -> None:
    """End the whole session; it may be gone already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _verdict(said: bytes, token: str, code: int | None) -> Verdict:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.startswith(token)]
    if not lines:
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Verdict(False, f"the program ended itself or was stopped by a limit ({ended})")
    told = json.loads(lines[-1].removeprefix(token))
    return Verdict(told["passed"], told["why"], told["no_network"])
