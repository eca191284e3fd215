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
"""Highest rank that vLLM supports. A running engine accepts ranks up to its own `max_lora_rank`."""


def publish_checked(folder: Path, where: Path, label: str, model: Path | None) -> Path:
    """Check that an engine can serve an adapter, then copy it under its name. `label` precedes the `@`. With
    `model`, tensor shapes are compared.
    """
    check(folder, LARGEST_RANK, tensors_of_model(model) if model else None)
    return publish(folder, where, label)


main = Program(
    "podium adapter",
    help="Publish a LoRA adapter under the name by which it is served.",
    epilog="Example: podium adapter publish build/training/mine/final --model models/smollm2-135m",
)


@main.command(
    "publish", epilog="Example: podium adapter publish build/training/mine/final --model models/smollm2-135m"
)
def publish_adapter(
    folder: Annotated[Path, Argument(help="folder of the adapter, as written by PEFT's save_pretrained")],
    label: Annotated[str, Option(help="part of the name before the @")] = "conductor",
    to: Annotated[Path, Option(help="folder in which the adapter is published")] = STORE,
    model: Annotated[
        Path | None, Option(help="folder of the base model, to check that the tensor shapes match")
    ] = None,
) -> int:
    """Copy an adapter to the folder of published adapters, under a name that includes a hash of its content."""
    try:
        print(publish_checked(folder, to, label, model))
    except AdapterError as error:
        raise CommandError(error.message) from error
    except OSError as error:
        raise CommandError(f"Cannot write to {to}: {error.strerror}.") from error
    return 0
