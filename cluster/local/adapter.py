"""`podium adapter publish FOLDER`: give a LoRA adapter the name under which it can be served.

docs/operations/live-changes.md says how to switch a running cluster to it.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `podium adapter` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="podium adapter",
        description="Give a LoRA adapter the name under which it is served.",
        epilog="example: podium adapter publish build/training/mine/final --model models/smollm2-135m",
    )
    command = parser.add_subparsers(required=True, metavar="publish").add_parser(
        "publish", help="copy an adapter to the folder of adapters, named after its content"
    )
    command.add_argument("folder", type=Path, help="adapter as written by PEFT's save_pretrained")
    command.add_argument("--label", default="conductor", help="the name before the @ (%(default)s)")
    command.add_argument("--to", type=Path, default=STORE, help="the folder of adapters (%(default)s)")
    command.add_argument(
        "--model", type=Path, help="folder of the base model, to check that the shapes match"
    )
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
