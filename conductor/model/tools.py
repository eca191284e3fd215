"""Tools that a client offers. The client runs them: Podium only carries the call to it and the result back.

Every dialect and every wire translates to and from these types, and from the calls and results in
`messages.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from conductor.model.messages import CacheMark, ToolKind


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client runs.

    Args:
        name: unique in its namespace.
        description: for the model.
        parameters: JSON Schema of the arguments of a function; None: it takes none.
        strict: the arguments must hold to `parameters`.
        kind: see `ToolKind`.
        namespace: of the client's own (OpenAI's `namespace` tools); empty: none.
        format: of a custom tool's input (OpenAI's `format`, such as a grammar); None: any text.
        cache: see `CacheMark`; the prefix is the tools up to this one.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = field(default=None, hash=False)
    strict: bool = False
    kind: ToolKind = "function"
    namespace: str = ""
    format: Mapping[str, Any] | None = field(default=None, hash=False)
    cache: CacheMark = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether a model calls tools.

    Args:
        mode: `auto`: it decides; `none`: it does not; `required`: it calls at least one.
        names: with `auto` or `required`: only these may be called; empty: all. One name with `required` is a
            forced call.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


AUTO = ToolChoice()


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of a request or of one call.

    Args:
        tools: in the client's order.
        choice: whether they are called.
        parallel: several may be called at once.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = AUTO
    parallel: bool = True

    def __bool__(self) -> bool:
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def is_forced(self) -> bool:
        """Whether at least one tool must be called."""
        return bool(self.tools) and self.choice.mode == "required"

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Those that the choice leaves: none where none may be called."""
        if not self:
            return ()
        return tuple(tool for tool in self.tools if not self.choice.names or tool.name in self.choice.names)


NO_TOOLS = Toolset()
