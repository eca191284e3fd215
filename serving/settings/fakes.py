"""Settings of the fakes that ship with Podium: a stand-in for an engine, and the replies of a scripted
worker.
"""

from typing import Any, Literal

from pydantic import Field

from conductor.model.reply import FinishReason
from serving.settings.access import Frozen


class StandInSettings(Frozen):
    """Fake engine with the timing of a real one; see `serving.deployments.fake_engine.FakeEngine`."""

    start_s: float = Field(default=0.0, ge=0)
    """Time to load the weights, in seconds."""
    first_token_s: float = Field(default=0.05, ge=0)
    """Time to first token, in seconds."""
    tokens_per_s: float = Field(default=50.0, gt=0)
    """Decoding speed of one answer, in tokens per second."""
    slots: int = Field(default=16, ge=1)
    """Maximum number of concurrent answers; more wait, as in vLLM's queue."""
    answer_tokens: int = Field(default=64, ge=1)
    """Length of an answer in tokens."""


class ScriptedCallSettings(Frozen):
    """Call of one of the client's tools."""

    name: str
    """Name of the tool. A call of a tool that the request does not offer is dropped."""
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """Arguments: the fields for a function, or the input text for a custom tool."""


class ScriptedReplySettings(Frozen):
    """Reply of a scripted worker; see `serving.workers.scripted.ScriptedReply`."""

    text: str = ""
    """Text of the answer. `{question}` is replaced by the text of the user's last message, `{results}` by the
    latest results of tools."""
    reasoning: str = ""
    """Thoughts that come before the answer."""
    calls: tuple[ScriptedCallSettings, ...] = ()
    """Tool calls, all made together after the text. A script with tool calls starts again for each
    conversation, and tool results are answered by the reply after the one that made the calls. If a request
    offers no tools, replies with tool calls are skipped."""
    error: Literal["busy", "unavailable", "refused", "overflow"] | None = None
    """Error to fail with instead of answering, or after `fail_after_tokens` if that is set."""
    retry_after_s: float | None = None
    """`Retry-After` of the error, in seconds."""
    fail_after_tokens: int | None = None
    """Number of tokens after which the reply fails, with `unavailable` if `error` is not set."""
    stall_after_tokens: int | None = None
    """Number of tokens after which the reply stalls."""
    finish: FinishReason = FinishReason.STOP
    """Finish reason."""
