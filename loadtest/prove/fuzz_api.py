"""`podium prove fuzz-api`: send requests that schemathesis generates from `/v1/openapi.json` to a router
process.

The router has a store, an administrator's key and scripted workers. A server error is a failure. schemathesis
is installed into its own environment. `podium.deadline_s` is not fuzzed, because a short deadline causes a
504 by design.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import httpx2
from typer import Option

from loadtest.rig import ROOT, Json, RigError
from loadtest.rig.processes import make_environment
from loadtest.rig.routers import prepare_process, running_router, scripted
from podium.command_line.program import Program
from serving.accounts.caller import Scope
from serving.accounts.directory import Directory
from serving.database.address import sqlite_address

REQUIREMENT = "schemathesis==4.32.5"
FOLDER = ROOT / "build" / "fuzz-api"
REPORT = FOLDER / "report.ndjson"
PHASES = "examples,coverage,fuzzing"
PRICE: Json = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
PLAN = '{"worker": "a", "subtask": "Find.", "access": []}\n{"worker": "b", "subtask": "End.", "access": [0]}'
SETTINGS: Json = {
    "conductor": {"worker": "conductor"},
    "workers": [
        scripted("conductor", PLAN, in_pool=False),
        scripted("a", "One {question}.", price=PRICE, sees_images=True),
        scripted("b", "Two.", price=PRICE, sees_images=True),
        {"name": "vectors", "kind": "scripted", "serves": ["embeddings"], "price": PRICE},
    ],
    "models": {"mini": {}, "ultra": {"rounds": 2}},
    "workflows": {"duo": [{"worker": "a"}, {"worker": "b", "access": [0]}]},
}
NAMES = {"EmbeddingsRequest": ("vectors",), "CompletionRequest": ("a", "b")}
"""Model names for requests whose bodies have these schemas. All other bodies get models that answer chats."""
CHATS = ("mini", "a", "b", "duo", "none")
HOOKS = """\
import os, schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    if case.method != "GET" and case.path_parameters.get("id") == os.environ["FUZZ_OWN_KEY"]:
        case.path_parameters["id"] = "key_of_nobody"
"""
"""Replace the fuzzer's own key in requests that change something. schemathesis takes ids from responses; if
it revoked its own key, it would get only 401s."""


main = Program("podium prove fuzz-api")


@main.command(help=__doc__, epilog="Example: podium prove fuzz-api --max-time 60")
def run(
    n: Annotated[int, Option("-n", metavar="N", help="maximum number of requests per route and phase")] = 50,
    seed: Annotated[int, Option(help="seed of the generated requests")] = 1,
    max_time: Annotated[int, Option(help="total time limit in seconds")] = 600,
) -> int:
    """Run the fuzzer. Return 1 after a server error or a crash of schemathesis."""
    prepare_process()
    FOLDER.mkdir(parents=True, exist_ok=True)
    make_environment(FOLDER / "env", REQUIREMENT)
    return asyncio.run(fuzz(n, seed, max_time))


async def fuzz(n: int, seed: int, max_time_s: int) -> int:
    """Send a router the requests that schemathesis generates. Return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        address = sqlite_address(Path(folder) / "podium.db")
        directory = Directory(address)
        key, info = await directory.create_key("fuzz", scopes=[*Scope])
        async with running_router("fuzz-api", address, SETTINGS) as router:
            secret = key.reveal()
            async with httpx2.AsyncClient(base_url=router.url) as http:
                answer = await http.get("/v1/openapi.json", headers={"authorization": f"Bearer {secret}"})
            if answer.status_code != 200:
                raise RigError(f"GET /v1/openapi.json returned status {answer.status_code}: {answer.text}")
            description = FOLDER / "openapi.json"
            description.write_text(json.dumps(narrow(answer.json())))
            (FOLDER / "fuzz_hooks.py").write_text(HOOKS)
            environ = {**os.environ, "SCHEMATHESIS_HOOKS": "fuzz_hooks", "FUZZ_OWN_KEY": info.id}
            status = await _run(description, router.url, secret, n, seed, max_time_s, environ)
        await directory.aclose()
    return status


async def _run(
    description: Path, url: str, secret: str, n: int, seed: int, max_time_s: int, environ: dict[str, str]
) -> int:
    process = await asyncio.create_subprocess_exec(
        str(FOLDER / "env" / "bin" / "st"),
        *("run", str(description), "--url", url, "--phases", PHASES, "--checks", "not_a_server_error"),
        *("--header", f"Authorization: Bearer {secret}", "--max-examples", str(n), "--seed", str(seed)),
        *("--max-time", str(max_time_s), "--continue-on-failure", "--warnings", "off"),
        *("--request-timeout", "60"),
        *("--suppress-health-check", "all", "--report", "ndjson", "--report-ndjson-path", str(REPORT)),
        cwd=FOLDER,
        env=environ,
    )
    status = await process.wait()
    statuses = Counter(re.findall(r'"status_code":(\d+)', REPORT.read_text()))
    sys.stdout.write(
        "Responses: " + ", ".join(f"{n} x {code}" for code, n in sorted(statuses.items())) + "\n"
    )
    return status or int(any(code >= "5" for code in statuses))


def narrow(document: Json) -> Json:
    """Restrict model names in the API description to existing ones, so that not all answers are 404."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    for name, schema in schemas.items():
        properties: Json = schema.get("properties", {})
        properties.pop("deadline_s", None)
        if name.endswith("Request") and "model" in properties:
            properties["model"] = {"enum": list(NAMES.get(name, CHATS))}
    return document
