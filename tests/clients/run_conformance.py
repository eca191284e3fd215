"""`make clients`: run the conformance suites `llm-comply`, in all three dialects, and `compatcanary` against workers
that follow every request. Print the number of passed tests and the name of each failed one.
"""

import asyncio
import json
import subprocess
import sys

from tests.clients.run_agents import BUILD, install
from tests.clients.run_programs import install_python
from tests.serving.api.served import Json, plan, served, step, team

MODELS = {"open-responses": "gpt-5", "openai-chat": "gpt-5", "anthropic": "claude-sonnet-4-5"}
"""Model names with which llm-comply skips no test."""
FORMATS: dict[str, list[str]] = {
    "open-responses": [],
    "openai-chat": [],
    "anthropic": ["--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01"],
}


def settings() -> Json:
    """Return settings with a plan of one step by the `Obedient` worker."""
    obeys: Json = {
        "name": "a",
        "kind": "python",
        "factory": "tests.clients.tool_following_worker:Obedient",
        "sees_images": True,
        "options": {},
    }
    return team(plan(step("a", "Answer.")), workers=[obeys], workflows={}) | {
        "models": {name: {} for name in ("podium", *MODELS.values())}
    }


async def comply(format: str, more: list[str]) -> Json:
    program = BUILD / "llm-comply" / "venv" / "bin" / "llm-comply"
    async with served(settings()) as api:
        words = [
            str(program),
            "--format",
            format,
            "-u",
            f"{api.url}/v1",
            "-k",
            "k",
            "-m",
            MODELS[format],
            "--json",
        ]
        done = await asyncio.to_thread(subprocess.run, [*words, *more], capture_output=True, text=True)
    (BUILD / f"llm-comply-{format}.json").write_text(done.stdout or done.stderr)
    return json.loads(done.stdout)


async def canary() -> str:
    program = BUILD / "compatcanary" / "node_modules" / ".bin" / "compatcanary"
    async with served(settings()) as api:
        words = [str(program), "scan", "--base-url", f"{api.url}/v1", "--model", "podium", "--api-key", "k"]
        done = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, cwd=program.parents[2]
        )
    return done.stdout + done.stderr


def main(words: list[str]) -> int:
    """Run the suites named in `words`, or all. Only a failed installation is a failure."""
    fault = install_python("llm-comply", "llm-comply==0.5.0")
    if fault:
        print(f"llm-comply: {fault}")
    for format, more in FORMATS.items() if not fault else ():
        tests = asyncio.run(comply(format, more))["results"]
        passed = [each for each in tests if each["status"] == "passed"]
        print(f"llm-comply {format}: {len(passed)} of {len(tests)}", flush=True)
        for each in tests:
            if each not in passed:
                print(f"  {each['id']}: {each['status']}: {str(each.get('errors'))[:600]}")
    if fault := install("compatcanary"):
        print(f"compatcanary: {fault}")
        return 1
    report = asyncio.run(canary())
    (BUILD / "compatcanary.log").write_text(report)
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
