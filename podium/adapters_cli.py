"""`podium adapters`: list the LoRA adapters that a server's workers use, or those in a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podium.client import FAILED, Client, ClientError, parser_of, run
from podium.command_line.terminal import inert_json

Json = dict[str, Any]
CONFIG = "adapter_config.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(
        "adapters",
        "List the LoRA adapter of each worker of a running server, or with --folder the adapters in a folder and their base models. "
        "`podium adapter publish` gives an adapter the name under which it is served.",
        "podium adapters --folder adapters",
    )
    parser.add_argument("--folder", type=Path, help="list the adapters in this folder instead of a server's")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    return run(lambda: list_adapters(options))


def list_adapters(options: argparse.Namespace) -> int:
    """Print the adapters.

    Raises:
        ClientError: the server rejects the request or cannot be reached, or the folder does not exist.
    """
    rows = in_folder(options.folder) if options.folder else in_use(Client.of(options))
    if options.json:
        for row in rows:
            print(inert_json(row))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    out = terminal()
    if not rows:
        out.print("The folder has no adapter." if options.folder else "No worker uses an adapter.")
        return 0
    table = Table(*rows[0], box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out.print(table)
    return 0


def in_use(client: Client) -> list[Json]:
    """Return the workers that use an adapter, each with its base model.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    listed: list[Json] = client.get("/v1/models")["data"]
    about = {each["id"]: each["podium"] for each in listed if each["podium"].get("adapter")}
    return [
        {"worker": worker, "adapter": each["adapter"], "over": each["model"].rpartition("+")[0]}
        for worker, each in about.items()
    ]


def in_folder(folder: Path) -> list[Json]:
    """Return the adapters in `folder`, with their base model and rank.

    Raises:
        ClientError: the folder does not exist, or an adapter in it cannot be read.
    """
    if not folder.is_dir():
        raise ClientError(f"Folder {folder} does not exist.", FAILED)
    try:
        return [_adapter(path.parent) for path in sorted(folder.glob(f"*/{CONFIG}"))]
    except (OSError, ValueError, KeyError) as error:
        raise ClientError(f"An adapter in {folder} cannot be read: {error}.", FAILED) from None


def _adapter(folder: Path) -> Json:
    config: Json = json.loads((folder / CONFIG).read_text())
    return {"adapter": folder.name, "base model": config["base_model_name_or_path"], "rank": config["r"]}
