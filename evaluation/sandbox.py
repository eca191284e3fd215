"""Run an untrusted program and its tests in isolation.

Each program has its own process, session and empty folder, no environment, limits on CPU time, memory, file
size, open files and child processes, and, where the kernel allows an ordinary user one, a network namespace
without a network. A process of root becomes nobody first. Everything it started is killed when its time is
over.

What it does NOT protect from: a program that reads world-readable files; one that forges its own verdict (it
shares the interpreter with its tests); kernel bugs. Where the namespace is denied (some containers), the
network is reachable. For hostile programs use a virtual machine.
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
class SandboxResult:
    """The result of running a program.

    Args:
        passed: whether its tests ran to their end.
        why: in words, where they did not.
        no_network: whether the network was shut off; None where the child could not say.
    """

    passed: bool
    why: str = ""
    no_network: bool | None = None


async def run_program(
    program: str, tests: str, timeout_s: float = 10.0, memory_bytes: int = MEMORY_BYTES
) -> SandboxResult:
    """Run `program`, then `tests` in its namespace.

    Args:
        program: Python source.
        tests: Python source that raises where something is wrong.
        timeout_s: of both together, once the interpreter is there; also the limit of CPU time.
        memory_bytes: of the address space.
    """
    token = secrets.token_hex(16)
    order = {
        "program": program,
        "tests": tests,
        "cpu_s": int(timeout_s) + 1,
        "memory_bytes": memory_bytes,
        "token": token,
    }
    with tempfile.TemporaryDirectory(prefix="podium-code-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: S103, PTH101  (it is empty, and its owner-to-be may be nobody)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(CHILD),
            cwd=folder,
            env={},
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            output, _ = await asyncio.wait_for(
                process.communicate(json.dumps(order).encode()), timeout_s + SLACK_S
            )
        except TimeoutError:
            return SandboxResult(False, f"it ran past {timeout_s:g} s")
        finally:
            _kill(process.pid)
            await process.wait()
    return _verdict(output, token, process.returncode)


def _kill(pid: int) -> None:
    """Kill the whole session; it may have ended already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _verdict(output: bytes, token: str, code: int | None) -> SandboxResult:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith(token)]
    if not lines:
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return SandboxResult(False, f"the program ended itself or was stopped by a limit ({ended})")
    verdict = json.loads(lines[-1].removeprefix(token))
    return SandboxResult(verdict["passed"], verdict["why"], verdict["no_network"])
