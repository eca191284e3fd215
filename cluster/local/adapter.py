"""`podium adapter publish FOLDER`: give a LoRA adapter the name under which it can be served.

docs/operations/live-changes.md says how to switch a running cluster to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from podium.command_line.program import CommandError, Program
from serving.lora.adapters import AdapterError, publish
from serving.lora.compatibility import check, tensors_of_model

STORE = Path("models/adapters")
LARGEST_RANK = 512
"""Highest rank that vLLM supports. An engine accepts ranks up to its `max_lora_rank`."""


def publish_checked(folder: Path, where: Path, label: str, model: Path | None) -> Path:
    """Publish an adapter after checking that an engine can serve it.

    Args:
        folder: adapter as written by PEFT.
        where: the folder of adapters.
        label: the part of the name before the `@`.
        model: folder of the base model, to compare shapes, or None to skip that.

    Raises:
        AdapterError: it cannot be served; nothing is published.
        OSError: it cannot be written.
    """
    check(folder, LARGEST_RANK, tensors_of_model(model) if model else None)
    return publish(folder, where, label)


main = Program(
    "podium adapter",
    help="Give a LoRA adapter the name under which it is served.",
    epilog="Example: podium adapter publish build/training/mine/final --model models/smollm2-135m",
)


@main.command(
    "publish", epilog="Example: podium adapter publish build/training/mine/final --model models/smollm2-135m"
)
def publish_adapter(
    folder: Annotated[Path, Argument(help="adapter as written by PEFT's save_pretrained")],
    label: Annotated[str, Option(help="the name before the @")] = "conductor",
    to: Annotated[Path, Option(help="the folder of adapters")] = STORE,
    model: Annotated[
        Path | None, Option(help="folder of the base model, to check that the shapes match")
    ] = None,
) -> int:
    """Copy an adapter to the folder of adapters, named after its content."""
    try:
        print(publish_checked(folder, to, label, model))
    except AdapterError as error:
        raise CommandError(error.message) from error
    except OSError as error:
        raise CommandError(f"{to} cannot be written: {error.strerror}.") from error
    return 0
