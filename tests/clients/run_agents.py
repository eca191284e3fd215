"""`make clients`: install each unmodified coding agent with npm and let it repair a failing test through a plan of
three steps, two of which use its tools. The workers are scripted, and all traffic stays on loopback. `--record`
stores the shapes of the exchanges.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from serving.api.app import build_api
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from tests.clients.agents import AGENTS, ANSWER, FILES, TEST, Agent, environment, settings
from tests.clients.recording import Recorder
from tests.serving.api.served import Json, listening

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "clients"
RECORDINGS = Path(__file__).parent / "recordings"
LOCKS = Path(__file__).parent / "locks"
WITHIN_S = 150


def install(name: str) -> str:
    """Install the npm packages of `locks/NAME` without running their scripts. Return what failed, or ""."""
    folder, lock = BUILD / name, LOCKS / name
    stamp, state = folder / "installed.txt", (lock / "package-lock.json").read_text()
    if stamp.exists() and stamp.read_text() == state:
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not on the PATH: install Node 20."
    folder.mkdir(parents=True, exist_ok=True)
    for file in lock.iterdir():
        shutil.copy(file, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return f"{name} could not be had: {done.stderr.strip().splitlines()[-1:]}"
    stamp.write_text(state)
    return ""


def passes(repository: Path) -> bool:
    """Return whether the repository's test passes."""
    return subprocess.run(TEST.split(), cwd=repository, capture_output=True).returncode == 0


async def repair(agent: Agent, at: Path) -> tuple[str, Recorder]:
    """Run an agent. Return what failed, or "", and its recorded exchanges."""
    home, repository = at / "home", at / "repository"
    home.mkdir()
    repository.mkdir()
    for name, text in FILES.items():
        (repository / name).write_text(text)
    assert not passes(repository), "it has to fail first"
    service = Service(build_pool(parse(settings(agent, repository)), {}, {}))
    recorder = Recorder(build_api(service))
    async with listening(recorder) as url:
        env = environment(home, agent.configure(home, url))
        process = await asyncio.create_subprocess_exec(
            *agent.program(BUILD / agent.name),
            *agent.words,
            cwd=repository,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                out, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            return "it did not end", recorder
    (BUILD / f"{agent.name}.log").write_bytes(out)
    if not passes(repository):
        return "the test still fails", recorder
    if ANSWER not in out.decode(errors="replace"):
        return "it did not show the answer", recorder
    return "", recorder


def keep(agent: Agent, shapes: list[Json]) -> None:
    """Store the exchanges to replay, one per line."""
    lines = ",\n".join(json.dumps(each) for each in shapes)
    (RECORDINGS / f"{agent.name}.json").write_text(
        f'{{"agent": "{agent.name}", "version": "{agent.version}", "exchanges": [\n{lines}\n]}}\n'
    )


def main(words: list[str]) -> int:
    chosen = [each for each in AGENTS if each.name in words] or list(AGENTS)
    failed = 0
    for agent in chosen:
        fault, recorder = install(agent.name), None
        if not fault:
            with TemporaryDirectory() as folder:
                fault, recorder = asyncio.run(repair(agent, Path(folder)))
        shapes = recorder.shapes() if recorder else []
        tools = sum(len(each["answer"]["calls"]) for each in shapes)
        print(
            f"{agent.name} {agent.version}: {fault or 'repaired'}; {len(shapes)} requests, {tools} calls of tools"
        )
        failed += bool(fault)
        if "--record" in words and not fault:
            keep(agent, shapes)
    print(
        f"{len(chosen) - failed} of {len(chosen)} agents passed; what they printed is in {BUILD.relative_to(ROOT)}"
    )
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
