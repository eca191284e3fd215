"""Run an untrusted program and its tests in isolation.

Each program gets its own process, session and empty folder, and no environment variables. CPU time, memory,
file size, open files and child processes are limited. If the kernel allows it for unprivileged users, the
process has a network namespace without a network. A root process switches to the user `nobody` before it runs
the program. When the program ends or times out, everything that it started is killed.

The sandbox does NOT protect against a program that reads world-readable files, a program that forges its own
verdict (it shares the interpreter with its tests), or kernel bugs. If the namespace is denied, as in some
containers, the network is reachable. Use a virtual machine for hostile programs.
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
"""Limit of the address space."""
SLACK_S = 5.0
"""Seconds added to the program's time limit, for starting an interpreter on a busy machine."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Result of running a program. `no_network` is None if the child process did not report it."""

    passed: bool
    why: str = ""
    no_network: bool | None = None


async def run_program(
    program: str, tests: str, timeout_s: float = 10.0, slack_s: float = SLACK_S
) -> SandboxResult:
    """Run `program`, then `tests` in its namespace. The limit is for both: wall time after the interpreter's
    start, which may take `slack_s`, and CPU time.
    """
    token = secrets.token_hex(16)
    order = {
        "program": program,
        "tests": tests,
        "cpu_s": int(timeout_s) + 1,
        "memory_bytes": MEMORY_BYTES,
        "token": token,
    }
    with tempfile.TemporaryDirectory(prefix="podium-code-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: S103, PTH101  (it is empty, and the user `nobody` may need it)
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
                process.communicate(json.dumps(order).encode()), timeout_s + slack_s
            )
        except TimeoutError:
            return SandboxResult(False, f"the program did not finish within {timeout_s:g} s")
        finally:
            _kill(process.pid)
            await process.wait()
    return _verdict(output, token, process.returncode)


def _kill(pid: int) -> None:
    """Kill the whole session, which may have ended already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _verdict(output: bytes, token: str, code: int | None) -> SandboxResult:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith(token)]
    if not lines:
        status = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return SandboxResult(False, f"the program exited early or exceeded a limit ({status})")
    verdict = json.loads(lines[-1].removeprefix(token))
    return SandboxResult(verdict["passed"], verdict["why"], verdict["no_network"])
