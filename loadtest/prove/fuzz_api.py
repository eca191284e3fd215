"""`podium prove fuzz-api`: requests that schemathesis makes up from `/v1/openapi.json`, against a router process with a
store, an administrator's key and scripted workers: a server error is a failure. schemathesis is installed into an
environment of its own.

What a caller's own time limit makes of a request is a 504 by design, so `podium.deadline_s` is left to its default.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from cluster.local.uv import UV, environment
from loadtest.rig import ROOT, Json, RigError
from loadtest.rig.routers import prepare_process, running_router
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
        {"name": "conductor", "kind": "scripted", "in_pool": False, "replies": [PLAN]},
        {
            "name": "a",
            "kind": "scripted",
            "replies": ["One {question}."],
            "price": PRICE,
            "sees_images": True,
        },
        {"name": "b", "kind": "scripted", "replies": ["Two."], "price": PRICE, "sees_images": True},
        {"name": "vectors", "kind": "scripted", "serves": ["embeddings"], "price": PRICE},
    ],
    "models": {"mini": {}, "ultra": {"rounds": 2}},
    "workflows": {"duo": [{"worker": "a"}, {"worker": "b", "access": [0]}]},
}
NAMES = {"EmbeddingsRequest": ("vectors",), "CompletionRequest": ("a", "b")}
"""Which names each body is given most of the time; the others, all that answer chats."""
CHATS = ("mini", "a", "b", "duo", "none")
HOOKS = """\
import os, schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    if case.method != "GET" and case.path_parameters.get("id") == os.environ["FUZZ_OWN_KEY"]:
        case.path_parameters["id"] = "key_of_nobody"
"""
"""schemathesis takes ids out of answers: with its own key's it would lock itself out, and ask no more than 401s."""


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; 1 where a server error, or a crash of schemathesis, was seen."""
    parser = argparse.ArgumentParser(prog="podium prove fuzz-api", description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="requests a route and phase at most (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of what is made up (default 1)")
    parser.add_argument("--max-time", type=int, default=600, help="seconds of all of it (default 600)")
    options = parser.parse_args(arguments)
    prepare_process()
    install()
    return asyncio.run(fuzz(options.n, options.seed, options.max_time))


def install() -> None:
    """Make the environment that schemathesis is in, once."""
    python = FOLDER / "env" / "bin" / "python"
    if (FOLDER / "env" / "bin" / "st").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for command in (
        ["venv", "--clear", str(FOLDER / "env")],
        ["pip", "install", "--python", str(python), REQUIREMENT],
    ):
        subprocess.run([str(UV), "--quiet", *command], check=True, env=environment())


async def fuzz(n: int, seed: int, max_time_s: int) -> int:
    """Ask a router all that schemathesis makes up; its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        address = sqlite_address(Path(folder) / "podium.db")
        directory = Directory(address)
        key, info = await directory.create_key("fuzz", scopes=[*Scope])
        async with running_router("fuzz-api", address, SETTINGS) as router:
            secret = key.reveal()
            async with httpx2.AsyncClient(base_url=router.url) as http:
                answer = await http.get("/v1/openapi.json", headers={"authorization": f"Bearer {secret}"})
            if answer.status_code != 200:
                raise RigError(f"the description: {answer.status_code} {answer.text}")
            described = FOLDER / "openapi.json"
            described.write_text(json.dumps(narrow(answer.json())))
            (FOLDER / "fuzz_hooks.py").write_text(HOOKS)
            environ = {**os.environ, "SCHEMATHESIS_HOOKS": "fuzz_hooks", "FUZZ_OWN_KEY": info.id}
            status = await _run(described, router.url, secret, n, seed, max_time_s, environ)
        await directory.aclose()
    return status


async def _run(
    described: Path, url: str, secret: str, n: int, seed: int, max_time_s: int, environ: dict[str, str]
) -> int:
    process = await asyncio.create_subprocess_exec(
        str(FOLDER / "env" / "bin" / "st"),
        *("run", str(described), "--url", url, "--phases", PHASES, "--checks", "not_a_server_error"),
        *("--header", f"Authorization: Bearer {secret}", "--max-examples", str(n), "--seed", str(seed)),
        *(
            "--max-time",
            str(max_time_s),
            "--continue-on-failure",
            "--warnings",
            "off",
            "--request-timeout",
            "60",
        ),
        *("--suppress-health-check", "all", "--report", "ndjson", "--report-ndjson-path", str(REPORT)),
        cwd=FOLDER,
        env=environ,
    )
    status = await process.wait()
    counted = Counter(re.findall(r'"status_code":(\d+)', REPORT.read_text()))
    sys.stdout.write("Answers: " + ", ".join(f"{n} x {code}" for code, n in sorted(counted.items())) + "\n")
    return status or int(any(code >= "5" for code in counted))


def narrow(document: Json) -> Json:
    """The description with names that are served, so that requests come further than a 404."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    for name, schema in schemas.items():
        properties: Json = schema.get("properties", {})
        properties.pop("deadline_s", None)
        if name.endswith("Request") and "model" in properties:
            properties["model"] = {"enum": list(NAMES.get(name, CHATS))}
    return document


if __name__ == "__main__":
    sys.exit(main())
