"""`podium adapters`: the LoRA adapters with which a server's workers answer, or those in a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podium.client import FAILED, Client, ClientError, parser_of, run
from program.inert import inert_json

Json = dict[str, Any]
CONFIG = "adapter_config.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = parser_of(
        "adapters",
        "Which LoRA adapter each worker of a running server answers with; with --folder, the adapters in a folder and what they "
        "were made for. `podium adapter publish` gives one the name under which it is served.",
        "podium adapters --folder adapters",
    )
    parser.add_argument("--folder", type=Path, help="list those in it, and ask no server")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    return run(lambda: list_adapters(options))


def list_adapters(options: argparse.Namespace) -> int:
    """Print them.

    Raises:
        ClientError: the server refuses, or there is none; or no such folder.
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
        out.print("There is no adapter in it." if options.folder else "No worker answers with an adapter.")
        return 0
    table = Table(*rows[0], box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out.print(table)
    return 0


def in_use(client: Client) -> list[Json]:
    """Workers that answer with an adapter, and the model that it is put over.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    listed: list[Json] = client.get("/v1/models")["data"]
    about = {each["id"]: each["podium"] for each in listed if each["podium"].get("adapter")}
    return [
        {"worker": worker, "adapter": each["adapter"], "over": each["model"].rpartition("+")[0]}
        for worker, each in about.items()
    ]


def in_folder(folder: Path) -> list[Json]:
    """The adapters in `folder`, with their base model and rank.

    Raises:
        ClientError: there is no such folder, or one of them cannot be read.
    """
    if not folder.is_dir():
        raise ClientError(f"There is no folder {folder}.", FAILED)
    try:
        return [_adapter(path.parent) for path in sorted(folder.glob(f"*/{CONFIG}"))]
    except (OSError, ValueError, KeyError) as error:
        raise ClientError(f"An adapter in {folder} cannot be read: {error}.", FAILED) from None


def _adapter(folder: Path) -> Json:
    config: Json = json.loads((folder / CONFIG).read_text())
    return {"adapter": folder.name, "base model": config["base_model_name_or_path"], "rank": config["r"]}
