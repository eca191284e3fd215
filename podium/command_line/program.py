"""Command-line programs: functions whose parameters are options.

Typer reads the parameters. This module adds three features that Podium's programs share:

* An error is printed as one line.
* A dataclass groups options that belong together.
* An option that takes a list accepts several values at once: `--option a b`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature, getdoc, signature
from typing import Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from podium.command_line.terminal import inert

Function = TypeVar("Function", bound=Callable[..., int | Coroutine[Any, Any, int]])
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
SEVERAL = "..."
"""End of the metavar of an option that takes several values at once."""
SECTIONS = re.compile(r"\n\n(?:Args|Raises):\n")


class CommandError(typer.TyperException):
    """The command failed. The error, which says what happened and what to do, is one line on stderr."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(typer.TyperException):
    """The command line is invalid."""

    exit_code = 2


class OptionCommand(TyperCommand):
    """Command whose options accept several values, and whose help shows `--team TEAM` instead of `--team
    <str>`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for each in cast(list[Any], self.params):
            if isinstance(each, TyperOption) and each.metavar is None and not each.type_descriptor.is_choice:
                each.metavar = each.name.upper()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat an option before each of its values, then parse: `--seeds 0 1` is `--seeds 0 --seeds 1`."""
        several = {name for each in self.params if str(each.metavar).endswith(SEVERAL) for name in each.opts}
        words = list[str]()
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word if word in several else ""
            elif option and words[-1] != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


class Program:
    """Program with one command, or with several subcommands.

    Call the program with its arguments. It returns the exit code. It raises SystemExit after `--help` (code
    0) and for an invalid command line (code 2).
    """

    def __init__(self, name: str, help: str | None = None, epilog: str | None = None) -> None:
        self.name = name
        self._typer = typer.Typer(
            help=help,
            epilog=_as_written(epilog),
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=CONTEXT,
        )
        if help is not None:
            self._typer.callback()(_no_options)

    def command(
        self, name: str | None = None, epilog: str | None = None, help: str | None = None
    ) -> Callable[[Function], Function]:
        """Return a decorator that makes a function the command of the program, or its subcommand `name`.

        If `help` is None, the docstring of the function is the help. If the type of a parameter is a
        dataclass, each field of it is an option. A coroutine function runs in its own event loop.
        """

        def add(function: Function) -> Function:
            text = help or SECTIONS.split(getdoc(function) or "")[0]
            settings = {"help": text, "epilog": _as_written(epilog), "context_settings": CONTEXT}
            self._typer.command(name, cls=OptionCommand, **cast(Any, settings))(_with_fields(function))
            return function

        return add

    def build(self) -> Any:
        """Build the command object that Typer runs and completes."""
        return get_command(self._typer)

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the program and return its exit code. Raise SystemExit after help and for an invalid command
        line.
        """
        return run(self.build(), self.name, sys.argv[1:] if arguments is None else arguments)


class ProgramGroup(Program):
    """Program whose subcommands are in separate modules. Each module is imported when it is needed.

    Args:
        targets: location and one line of help, by the name of the subcommand. The location is
            `module:attribute`, or `module` for its attribute `main`. The attribute is a `Program`, or a
            function that takes the arguments.
    """

    def __init__(
        self, name: str, targets: Mapping[str, tuple[str, str]], help: str, epilog: str | None = None
    ) -> None:
        super().__init__(name, help, epilog)
        self._targets, self._settings = targets, {"help": help, "epilog": _as_written(epilog)}

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run a subcommand and return its exit code. Without arguments, print the help."""
        return super().__call__((sys.argv[1:] if arguments is None else arguments) or ["--help"])

    def build(self) -> Any:
        """Build the command object that Typer runs and completes, without importing the subcommands."""
        return _LazyGroup(self._targets, self._settings)


class _LazyGroup(TyperGroup):
    def __init__(self, targets: Mapping[str, tuple[str, str]], settings: dict[str, Any]) -> None:
        commands = [TyperCommand(name, help=about) for name, (_, about) in targets.items()]
        super().__init__(
            commands=commands,
            rich_markup_mode=None,
            context_settings=CONTEXT,
            subcommand_metavar="NAME [OPTIONS]",
            options_metavar=None,
            **settings,
        )
        self._targets = targets

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import and return the subcommand that the first of `args` names."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        program = load(self._targets[name][0])
        if isinstance(program, Program):
            return name, program.build(), rest
        return name, TyperCommand(name, callback=lambda: program(rest)), []


def load(target: str) -> Callable[[Sequence[str]], int]:
    """Import and return the program at `module:attribute`, or the attribute `main` of `module`."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute or "main")


def run(command: Any, name: str, arguments: Sequence[str]) -> int:
    """Run a Typer command and return its exit code. Print a `CommandError` on stderr. The context's `obj` is
    the command line.
    """
    try:
        with command.make_context(
            name, list(arguments), obj=shlex.join([*name.split(), *arguments])
        ) as context:
            return command.invoke(context) or 0
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except CommandError as error:
        print(f"{name}: {inert(error.message)}", file=sys.stderr)
        return error.exit_code
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else name
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        message += "" if message.endswith((".", "?")) else "."
        print(f"{path}: {inert(message)} See `{path} --help`.", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _with_fields(function: Callable[..., int | Coroutine[Any, Any, int]]) -> Callable[..., int]:
    """Replace each dataclass parameter of `function` by one parameter per field."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hints[name] for name in signature(function).parameters if is_dataclass(hints[name])}
    parameters = list[Parameter]()
    for name, parameter in signature(function).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            parameters += [
                Parameter(
                    each.name, Parameter.KEYWORD_ONLY, default=_default(each), annotation=kinds[each.name]
                )
                for each in fields(groups[name])
            ]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))

    def call(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        result = function(**values)
        if isinstance(result, int):
            return result
        import asyncio

        return asyncio.run(result)

    cast(Any, call).__signature__ = Signature(parameters)
    call.__name__ = function.__name__
    return call


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def _as_written(text: str | None) -> str | None:
    """Mark each paragraph with several lines, so that Typer does not join the lines."""
    if text is None:
        return None
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(f"\b\n{each}" if "\n" in each else each for each in paragraphs)


def _no_options() -> None:
    """Do nothing. With this callback, Typer keeps the subcommand of a program that has only one."""
