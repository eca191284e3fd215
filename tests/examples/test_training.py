"""examples/training from its questions to a published adapter, with the shipped files, a conductor of a few thousand
weights, two steps, and loopback providers that enforce the real ones' rules. Only `claude` answers correctly.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings.settings import load, parse
from tests.conftest import ROOT
from tests.lazy import lazy
from tests.wires import strict
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving
from training.config import ModelConfig, ScratchConfig
from training.jsonl_questions import read_questions

model_for = lazy("training.models:model_for")
tokenizer_for = lazy("training.models:tokenizer_for")

EXAMPLE = ROOT / "examples" / "training"
PROVIDERS = {
    "openai": (OpenAIWire(), strict.openai(), "/v1"),
    "anthropic": (AnthropicWire(), strict.anthropic, ""),
    "gemini": (GeminiWire(), strict.gemini, ""),
}
RIGHT = {
    question.text: question.expected
    for name in ("problems.jsonl", "held_out.jsonl")
    for question in read_questions(str(EXAMPLE / name))
}


def answering(kind: str) -> Any:
    """Return a provider that checks its rules, then gives the expected answer if it is Anthropic, else 0."""
    checked = PROVIDERS[kind][1]

    def respond(request: Request) -> Answer:
        answer = checked(request)
        body = json.dumps(request.body, ensure_ascii=False)
        expected = next(right for text, right in RIGHT.items() if json.dumps(text)[1:-1] in body)
        return replace(answer, text=f"<answer>{expected if kind == 'anthropic' else 0}</answer>")

    return respond


@asynccontextmanager
async def example(folder: Path) -> AsyncIterator[Path]:
    """Write the example's files to `folder`, with loopback API workers and a small conductor. Yield its training
    config.
    """
    pool = yaml.safe_load((EXAMPLE / "pool.yaml").read_text())
    config = yaml.safe_load((EXAMPLE / "train.yaml").read_text())
    texts = [question.text for question in read_questions(config["questions"]["path"])]
    scratch = ModelConfig(scratch=ScratchConfig(hidden=32, layers=1, heads=1, vocabulary=1500))
    tokenizer = tokenizer_for(scratch, [*texts, *pool["prompts"].values()])
    model_for(scratch, tokenizer, 0).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    async with AsyncExitStack() as stack:
        for worker in pool["workers"]:
            if worker["kind"] in PROVIDERS:
                wire, _, path = PROVIDERS[worker["kind"]]
                server = await stack.enter_async_context(serving(wire))
                server.respond = answering(worker["kind"])
                worker["base_url"] = server.url + path
        (folder / "pool.yaml").write_text(yaml.safe_dump(pool))
        config["model"]["path"], config["pool"]["settings"] = str(folder / "base"), str(folder / "pool.yaml")
        config["warm_start"] |= {"examples": 240, "batch": 8, "learning_rate": 0.01, "step_shares": [1.0]}
        config["grpo"] |= {"steps": 2, "questions": 2, "completions": 4, "max_plan_tokens": 48}
        (folder / "train.yaml").write_text(yaml.safe_dump(config))
        yield folder / "train.yaml"


async def run(*command: str) -> str:
    """Run a command with planted keys. Return its output, and require exit status 0."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "planted")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        cwd=ROOT,
        env=os.environ | keys | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-4000:]
    return output.decode()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_questions_and_an_api_pool_are_trained_into_a_servable_adapter(tmp_path: Path) -> None:
    out = tmp_path / "run"
    held_out = f"jsonl:{EXAMPLE}/held_out.jsonl?question=text&answer=expected&grader=numeric&form="
    async with example(tmp_path) as config:
        pool = str(tmp_path / "pool.yaml")
        output = await run(
            "evaluation.cli",
            "--settings",
            pool,
            "--questions",
            held_out,
            "--strategies",
            "single",
            "--out",
            str(tmp_path / "eval"),
        )
        assert re.search(r"single:claude +100\.0", output), output
        assert re.search(r"single:gpt +0\.0", output), output
        output = await run("training.cli", "--config", str(config), "--out", str(out))
        assert "Unclosed" not in output, output
    report = json.loads((out / "report.json").read_text())
    assert report["steps"] == 2
    assert report["after"]["support"]["questions"] == 8
    assert report["alone"]["support"]["workers"] == {"gpt": 0, "claude": 1, "gemini": 0}

    output = await run("training.adapters", str(out), "--into", str(tmp_path / "adapters"))
    adapter = output.split()[-1]
    assert re.search(r"conductor@[0-9a-f]{8}$", adapter), output
    served = load(pool).model_dump(mode="json", exclude_unset=True)
    served["workers"][0] |= {"adapter": adapter, "model": str(tmp_path / "base")}
    assert parse(served).adapters_of("conductor") == [adapter]


def test_the_page_names_the_examples_files() -> None:
    page = (EXAMPLE / "README.md").read_text()
    names = re.findall(r"examples/training/([\w.]+)", page)
    assert names
    for name in names:
        assert (EXAMPLE / name).exists(), name
    config = yaml.safe_load((EXAMPLE / "train.yaml").read_text())
    grpo = config["grpo"]
    plans = grpo["steps"] * grpo["questions"] * grpo["completions"]
    assert f"{plans * load(EXAMPLE / 'pool.yaml').models['podium-mine'].max_steps} calls of workers" in page
