"""`podium adapter publish FOLDER`: give a LoRA adapter the name under which it can be served.

How a running cluster is switched to it: docs/operations/live-changes.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.lora.adapters import AdapterError, publish
from serving.lora.compatibility import check, tensors_of_model

STORE = Path("models/adapters")
LARGEST_RANK = 512
"""vLLM's; what an engine takes is its `max_lora_rank`."""


def publish_checked(folder: Path, where: Path, label: str, model: Path | None) -> Path:
    """Publish an adapter that an engine can serve.

    Args:
        folder: as PEFT wrote it.
        where: the folder of adapters.
        label: the part of the name before the `@`.
        model: the folder of the model it was trained on, to compare their shapes.

    Raises:
        AdapterError: it cannot be served; nothing is published.
        OSError: it cannot be written.
    """
    check(folder, LARGEST_RANK, tensors_of_model(model) if model else None)
    return publish(folder, where, label)


def main(arguments: Sequence[str] | None = None) -> int:
    """`podium adapter`."""
    parser = argparse.ArgumentParser(
        prog="podium adapter",
        description="Give a LoRA adapter the name under which it is served.",
        epilog="example: podium adapter publish build/training/mine/final --model models/smollm2-135m",
    )
    command = parser.add_subparsers(required=True, metavar="publish").add_parser(
        "publish", help="copy it to the adapters, named after its content"
    )
    command.add_argument("folder", type=Path, help="as PEFT's save_pretrained wrote it")
    command.add_argument("--label", default="conductor", help="the name before the @ (%(default)s)")
    command.add_argument("--to", type=Path, default=STORE, help="the folder of adapters (%(default)s)")
    command.add_argument("--model", type=Path, help="the base model's folder, to check that they fit")
    options = parser.parse_args(arguments)
    try:
        print(publish_checked(options.folder, options.to, options.label, options.model))
    except AdapterError as error:
        print(error.message, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.to} cannot be written: {error.strerror}.", file=sys.stderr)
        return 1
    return 0
