"""One start of the default as `make serve` does it (set-up aside), from the first request to Ctrl-C: Ray Serve,
two vLLM engines, the conductor that ships. Its settings have one line more, with which the writer calls tools.
"""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import AuthenticationError, OpenAI

from cluster.local.processes import is_free, processes_of
from cluster.local.processes import free_port
from tests import secrets
from tests.clients.run_default import settings_with_tools
from tests.conftest import ROOT
from tests.keys import make_key, revoke_key, until_refused
from tests.states import until

ASK: Any = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 32}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False,
        },
    },
}  # fmt: skip
