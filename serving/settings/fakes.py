"""Settings of the fakes that ship with Podium: a stand-in for an engine, and the replies of a scripted
worker.
"""

from typing import Any, Literal

from pydantic import Field

from conductor.model.reply import FinishReason
from serving.settings.access import Frozen


class StandInSettings(Frozen):
    """Fake engine with the timing of a real engine. See `serving.deployments.fake_engine.FakeEngine`."""

    start_s: float = Field(default=0.0, ge=0)
    """Time for loading the weights, in seconds."""
    first_token_s: float = Field(default=0.05, ge=0)
    """Time to the first token, in seconds."""
    tokens_per_s: float = Field(default=50.0, gt=0)
    """Decoding speed of one answer, in tokens per second."""
    slots: int = Field(default=16, ge=1)
    """Maximum number of concurrent answers. Further requests wait, as in vLLM's queue."""
    answer_tokens: int = Field(default=64, ge=1)
    """Length of an answer in tokens."""


class ScriptedCallSettings(Frozen):
    """Call of one of the client's tools."""

    name: str
    """Name of the tool. The call is dropped if the request does not offer this tool."""
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """Arguments of the call. Use keys and values for a function, and text for a custom tool."""


class ScriptedReplySettings(Frozen):
    """Reply of a scripted worker. See `serving.workers.scripted.ScriptedReply`."""

    text: str = ""
    """Text of the answer. `{question}` is replaced by the text of the user's last message, and `{results}` by
    the latest tool results."""
    reasoning: str = ""
    """Thoughts that are sent before the answer."""
    calls: tuple[ScriptedCallSettings, ...] = ()
    """Tool calls that the worker makes together, after the text. The next reply then answers the tool
    results. A script with tool calls starts again for each conversation. If a request offers no tools,
    replies with tool calls are skipped."""
    error: Literal["busy", "unavailable", "refused", "overflow"] | None = None
    """Error with which the reply fails instead of answering. If `fail_after_tokens` is set, the reply fails
    after that many tokens."""
    retry_after_s: float | None = None
    """Value of `Retry-After` that is sent with the error, in seconds."""
    fail_after_tokens: int | None = None
    """Number of tokens after which the reply fails. If `error` is not set, the error is `unavailable`."""
    stall_after_tokens: int | None = None
    """Number of tokens after which the reply stops sending and stays open."""
    finish: FinishReason = FinishReason.STOP
    """Finish reason of the answer."""
