"""`podium adapters`: list the LoRA adapters that a server's workers use, or those in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from podium.client import DEFAULT_URL, FAILED, Client, ClientError, Url, epilog
from podium.command_line.options import JsonLines
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert_json, table

Json = dict[str, Any]
CONFIG = "adapter_config.json"
main = Program("podium adapters")


@main.command(epilog=epilog("podium adapters --folder adapters"))
def list_adapters(
    url: Url = DEFAULT_URL,
    folder: Annotated[
        Path | None, Option(help="list the adapters in this folder instead of a server's")
    ] = None,
    as_json: JsonLines = False,
) -> int:
    """List the LoRA adapter of each worker of a running server, or with --folder the adapters in a folder and
    their base models. `podium adapter publish` gives an adapter the name under which it is served.
    """
    if folder:
        _print(in_folder(folder), f"No adapters in {folder}.", as_json=as_json)
        return 0
    with Client.open(url) as client:
        _print(in_use(client), "No worker of this server uses an adapter.", as_json=as_json)
    return 0


def _print(adapters: list[Json], none: str, *, as_json: bool) -> None:
    if as_json:
        for each in adapters:
            print(inert_json(each))
    elif not adapters:
        console().print(none)
    else:
        rows = table(*("base model" if name == "over" else name for name in adapters[0]))
        for each in adapters:
            rows.add_row(*map(cell, each.values()))
        console().print(rows)


def in_use(client: Client) -> list[Json]:
    """Return the workers that use an adapter, each with its base model."""
    listed: list[Json] = client.get("/v1/models")["data"]
    about = {each["id"]: each["podium"] for each in listed if each["podium"].get("adapter")}
    return [
        {"worker": worker, "adapter": each["adapter"], "over": each["model"].rpartition("+")[0]}
        for worker, each in about.items()
    ]


def in_folder(folder: Path) -> list[Json]:
    """Return the adapters in `folder`, with their base model and rank."""
    if not folder.is_dir():
        raise ClientError(f"The folder {folder} does not exist.", FAILED)
    try:
        return [_adapter(path.parent) for path in sorted(folder.glob(f"*/{CONFIG}"))]
    except (OSError, ValueError, KeyError) as error:
        raise ClientError(f"An adapter in {folder} cannot be read: {error}.", FAILED) from None


def _adapter(folder: Path) -> Json:
    config: Json = json.loads((folder / CONFIG).read_text())
    return {"adapter": folder.name, "base model": config["base_model_name_or_path"], "rank": config["r"]}
