"""`make clients`: run the programs of docs/clients.md that need packages of their own, each in its environment."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.programs import ELSEWHERE, LUCEBENCH, NODE, PROGRAMS, SUNNY, Program, run
from tests.clients.run_agents import BUILD, ROOT, install
from tests.serving.api.served import served

UV = Path(sys.executable).parent / "uv"


def install_python(name: str, *packages: str) -> str:
    """Install packages in their own environment. Return what failed, or ""."""
    folder = BUILD / name
    stamp = folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == " ".join(packages):
        return ""
    venv = folder / "venv"
    creation = subprocess.run(
        [UV, "venv", "-q", "--clear", "-p", sys.executable, venv], capture_output=True, text=True
    )
    done = creation.returncode or subprocess.run(
        [UV, "pip", "install", "-q", "--python", venv / "bin" / "python", *packages], cwd=ROOT
    )
    if done if isinstance(done, int) else done.returncode:
        return f"{', '.join(packages)} could not be had"
    stamp.write_text(" ".join(packages))
    return ""


async def run_one(program: Program) -> str:
    """Install and run a program. Return what failed, or ""."""
    if program in NODE:
        fault, at, binaries = install("node"), BUILD / "node", None
        if not fault:  # Node looks for packages next to the program.
            shutil.copy(PROGRAMS / program.words[1], at)
    else:
        fault, at = install_python(program.client, *program.packages), PROGRAMS
        at = BUILD / program.client if program is LUCEBENCH else at
        binaries = BUILD / program.client / "venv" / "bin"
    if fault:
        return fault
    with TemporaryDirectory() as home:
        async with served(SUNNY) as api:
            return await asyncio.to_thread(run, program, api.url, Path(home), binaries, at)


def main(words: list[str]) -> int:
    chosen = [each for each in (*NODE, *ELSEWHERE, LUCEBENCH) if not words or each.client in words]
    failed = 0
    for program in chosen:
        fault = asyncio.run(run_one(program))
        print(f"{program.client}: {fault or 'as the page says'}", flush=True)
        failed += bool(fault)
    print(f"{len(chosen) - failed} of {len(chosen)} programs passed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
