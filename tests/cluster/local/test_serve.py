"""What `make serve` prints when it is ready can be copied and run."""

import json
import re
import shlex
import textwrap

import pytest

from cluster.local.serve import READY, main

URL = "http://127.0.0.1:8000"
PRINTED = READY.format(url=URL, log="build/serve.log", metrics=f"{URL}/metrics")


def test_the_program_it_prints_compiles() -> None:
    program = textwrap.dedent(PRINTED[PRINTED.index("  from openai") :])
    names = compile(program, "printed", "exec").co_names
    assert {"OpenAI", "client", "stream"} <= set(names)


def test_the_command_it_prints_sends_json() -> None:
    command = re.search(r"  curl .*?\n.*?\n", PRINTED)
    assert command
    words = shlex.split(command.group().replace("\\\n", ""))
    assert words[1] == f"{URL}/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "podium-mini"


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_wrong_port_says_what_is_right(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--port", port])
    assert "a port number (0 to 65535)" in capsys.readouterr().err
