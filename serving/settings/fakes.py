"""What the settings say of fakes that ship: a stand-in for an engine, and the replies of a scripted worker."""

from typing import Any, Literal

from pydantic import Field

from conductor.model.reply import FinishReason
from serving.settings.access import Frozen


class StandInSettings(Frozen):
    """A FAKE engine, with the times of a real one; see `serving.deployments.fake_engine.FakeEngine`."""

    start_s: float = Field(default=0.0, ge=0)
    """Time to load the weights."""
    first_token_s: float = Field(default=0.05, ge=0)
    """Time to first token."""
    tokens_per_s: float = Field(default=50.0, gt=0)
    """Decoding speed of one answer."""
    slots: int = Field(default=16, ge=1)
    """Answers at once; more wait, as in vLLM's queue."""
    answer_tokens: int = Field(default=64, ge=1)
    """How long an answer is."""


class ScriptedCallSettings(Frozen):
    """A call of one of the client's tools."""

    name: str
    """Of the tool. A call of one that the request does not offer is left out."""
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """Of a function: its fields. Of a custom tool: its input, a text."""


class ScriptedReplySettings(Frozen):
    """One reply of a scripted worker; see `serving.workers.scripted.ScriptedReply`."""

    text: str = ""
    """The answer. `{question}` becomes the last words of the user, `{results}` what tools gave last."""
    reasoning: str = ""
    """Thoughts that come before it."""
    calls: tuple[ScriptedCallSettings, ...] = ()
    """Calls of tools, all at once, after the text. A script that has some begins anew with each conversation, and each
    result of tools is answered by the reply after the one that called. Where a request offers no tools, replies that
    call some are passed over."""
    error: Literal["busy", "unavailable", "refused", "overflow"] | None = None
    """Fail in this way instead; after `fail_after_tokens`, where that is set."""
    retry_after_s: float | None = None
    """The `Retry-After` of the error."""
    fail_after_tokens: int | None = None
    """Fail after this many tokens; as `unavailable`, where `error` is not set."""
    stall_after_tokens: int | None = None
    """Fall silent after this many tokens."""
    finish: FinishReason = FinishReason.STOP
    """The finish reason."""
