"""The unmodified coding agents: how each is configured and started, and which tool calls the scripted workers make."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serving.api.served import Json, plan, scripted, step, team

WRONG, RIGHT = "return a - b", "return a + b"
FILES = {
    "sums.py": f"def add(a, b):\n    {WRONG}\n",
    "test_sums.py": "from sums import add\n\nassert add(2, 3) == 5\nprint('passed')\n",
}
TASK = "The test test_sums.py fails. Repair sums.py."
TEST = "python3 test_sums.py"
ANSWER = "The test passes now."


@dataclass(frozen=True)
class Agent:
    """One coding agent.

    Args:
        name: folder under build/clients.
        package: npm package, locked in `locks/NAME`.
        version: tested version.
        configure: writes the configuration into a new home, for a server at a URL, and returns environment variables.
        words: command line after the program.
        look: tool calls of the first step, turn by turn, in a repository.
        repair: tool calls of the second step.
    """

    name: str
    package: str
    version: str
    configure: Callable[[Path, str], dict[str, str]]
    words: tuple[str, ...]
    look: Callable[[Path], list[Json]]
    repair: Callable[[Path], list[Json]]

    def program(self, folder: Path) -> tuple[str, ...]:
        """Return the command for the package that npm installed. The package's install script has not run."""
        packages = folder / "node_modules"
        match self.name:
            case "claude-code":
                return "node", str(packages / self.package / "cli-wrapper.cjs")
            case "opencode":
                return (str(packages / self.package / "bin" / "opencode"),)
            case _:
                return (str(packages / ".bin" / self.name),)


def settings(agent: Agent, repository: Path) -> Json:
    """Return settings with a plan of three steps, of which two use the agent's tools."""
    workers = [
        _worker("reader", agent.look(repository), "It subtracts."),
        _worker("editor", agent.repair(repository), "Repaired: {results}"),
        scripted("teller", ANSWER),
        scripted("title", "A repair"),
    ]
    steps = plan(
        step("reader", "Look."), step("editor", "Repair.", [0]), step("teller", "Tell the end.", [0, 1])
    )
    return team(steps, workers=workers, workflows={}) | {"models": {"podium": {}}}


def _worker(name: str, calls: list[Json], then: str) -> Json:
    return scripted(name, *[{"text": "", "calls": [call]} for call in calls], then)


def _call(name: str, **arguments: Any) -> Json:
    return {"name": name, "arguments": arguments}


def _codex(home: Path, url: str) -> dict[str, str]:
    (home / "config.toml").write_text(
        'model = "podium"\nmodel_provider = "podium"\ncheck_for_update_on_startup = false\n'
        'web_search = "disabled"\n[analytics]\nenabled = false\n[model_providers.podium]\nname = "Podium"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "PODIUM_API_KEY"\n'
    )
    return {"CODEX_HOME": str(home), "PODIUM_API_KEY": "k"}


def _claude(home: Path, url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_MODEL": "podium",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _opencode(home: Path, url: str) -> dict[str, str]:
    provider: Json = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Podium",
        "options": {"baseURL": f"{url}/v1", "apiKey": "k"},
        "models": {
            "podium": {
                "name": "Podium",
                "tool_call": True,
                "reasoning": True,
                "limit": {"context": 200000, "output": 32000},
            },
            "title": {"name": "Title"},
        },
    }
    config = {
        "$schema": "https://opencode.ai/config.json", "provider": {"podium": provider}, "model": "podium/podium",
        "small_model": "podium/title", "autoupdate": False, "share": "disabled", "permission": {"*": "allow"},
    }  # fmt: skip
    path = home / "opencode.json"
    path.write_text(json.dumps(config))
    return {
        "OPENCODE_CONFIG": str(path),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        **{f"XDG_{each}_HOME": str(home / each) for each in ("DATA", "CONFIG", "CACHE", "STATE")},
    }


AGENTS = (
    Agent(
        "codex", "@openai/codex", "0.169.0", _codex,
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        lambda at: [_call("exec_command", cmd="cat sums.py"), _call("exec_command", cmd=TEST)],
        lambda at: [_call("exec_command", cmd=f"sed -i 's/{WRONG}/{RIGHT}/' sums.py"), _call("exec_command", cmd=TEST)],
    ),
    Agent(
        "claude-code", "@anthropic-ai/claude-code", "2.1.330", _claude,
        ("--bare", "--permission-mode", "acceptEdits", "--allowedTools", "Bash Read Edit", "-p", TASK),
        lambda at: [_call("Read", file_path=str(at / "sums.py")), _call("Bash", command=TEST)],
        lambda at: [
            _call("Edit", file_path=str(at / "sums.py"), old_string=WRONG, new_string=RIGHT),
            _call("Bash", command=TEST),
        ],
    ),
    Agent(
        "opencode", "opencode-linux-x64", "1.18.33", _opencode,
        ("run", "-m", "podium/podium", TASK),
        lambda at: [_call("read", filePath=str(at / "sums.py")), _call("bash", command=TEST, description="Test")],
        lambda at: [
            _call("edit", filePath=str(at / "sums.py"), oldString=WRONG, newString=RIGHT),
            _call("bash", command=TEST, description="Test"),
        ],
    ),
)  # fmt: skip


def environment(home: Path, more: dict[str, str]) -> dict[str, str]:
    return os.environ | {"HOME": str(home)} | more
