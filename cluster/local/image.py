"""`python -m cluster.local.image`: build the image of `cluster/Dockerfile` from the wheel in `dist/`, with Buildah or Docker.

The bill of materials of the image's Python packages (CycloneDX) is written to `dist/`. pip's configuration is
passed to the build as a secret, so that mirrors and their passwords do not become part of the image.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from typer import Argument, Option

from cluster.local import uv
from cluster.local.uv import ROOT
from cluster.local.wheel import DIST
from podium.command_line.program import CommandError, Program

FILE = ROOT / "cluster" / "Dockerfile"
BOM = "bom.cdx.json"
"""Bill of materials, in the working folder of the image."""
NOT_INDEXES = {"cert", "client-cert"}
"""Options of pip that name files of this machine."""

main = Program("make image")


@main.command()
def build_image(
    options: Annotated[
        list[str] | None, Argument(help="further options of `buildah build` or `docker build`")
    ] = None,
    extra: Annotated[
        Literal["", "cpu"],
        Option(help="cpu adds vLLM and the bundled models; without it, the image serves API models"),
    ] = "",
    base: Annotated[
        str,
        Option(help="image with Python and its venv module, by digest", show_default="in cluster/Dockerfile"),
    ] = "",
    tag: Annotated[
        str, Option(help="name of the image", show_default="localhost/podium:VERSION, with -cpu")
    ] = "",
) -> int:
    """Build the image, and write its bill of materials beside the wheel.

    Raises:
        CommandError: there is no wheel or no program that builds images, or the build failed.
    """
    tool = next(filter(shutil.which, ("buildah", "docker")), None)
    if tool is None:
        raise CommandError(
            "Neither Buildah nor Docker is installed. On Debian, run `apt-get install buildah`."
        )
    if not any(DIST.glob("podium-*.whl")):
        raise CommandError("There is no wheel in dist/. Run `make wheel`.")
    number = wheel_version()
    tag = tag or f"localhost/podium:{number}{'-cpu' if extra else ''}"
    with TemporaryDirectory(prefix="podium-image-") as folder:
        (secret := Path(folder) / "indexes").write_text(indexes())
        words = [
            f"--build-arg=EXTRA={extra}",
            f"--secret=id=indexes,src={secret}",
            f"--file={FILE}",
            f"--tag={tag}",
        ]
        if base:
            words.append(f"--build-arg=BASE={base}")
        if tool == "buildah":
            words.append("--format=docker")  # OCI has no health check
        _run([tool, "build", *words, *(options or []), str(ROOT)])
    bom = DIST / f"podium-{number}{'-cpu' if extra else ''}.{BOM.partition('.')[2]}"
    bom.write_text(read_file(tool, tag, BOM))
    print(f"{tag}: {size(tool, tag)}. Its Python packages are listed in {bom.relative_to(ROOT)}.")
    return 0


def wheel_version() -> str:
    """Return the version of the wheel in `dist/`.

    Raises:
        CommandError: it is not the version of this checkout.
    """
    (name,) = (path.name for path in DIST.glob("podium-*.whl"))
    built, project = name.split("-")[1], tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    if built != version:
        raise CommandError(f"The wheel has version {built}, but this is {version}. Run `make wheel`.")
    return built


def indexes() -> str:
    """Return shell assignments that make pip and uv in the build use the package indexes of this machine."""
    config = {
        name: value for name, value in uv.pip_config().items() if name in uv.VARIABLES.keys() - NOT_INDEXES
    }
    pip = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in config.items()}
    variables = {uv.VARIABLES[name] for name in uv.VARIABLES.keys() - NOT_INDEXES} | uv.LIKE_PIP.keys()
    ours = {name: value for name, value in (uv.variables(config) | os.environ).items() if name in variables}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted((pip | ours).items()))


def read_file(tool: str, tag: str, path: str) -> str:
    """Return the text of a file in the working folder of an image."""
    if tool == "docker":
        return _run(["docker", "run", "--rm", "--entrypoint", "cat", tag, path], capture=True)
    container = _run(["buildah", "from", "--pull-never", tag], capture=True).strip()
    try:
        return _run(["buildah", "run", container, "--", "cat", path], capture=True)
    finally:
        _run(["buildah", "rm", container], capture=True)


def size(tool: str, tag: str) -> str:
    """Return the unpacked size of an image, such as `612 MB`."""
    return _run([tool, "images", "--format", "{{.Size}}", tag], capture=True).strip()


def _run(command: list[str], *, capture: bool = False) -> str:
    """Run a command and return its output.

    Raises:
        CommandError: the command failed.
    """
    ended = subprocess.run(command, stdout=subprocess.PIPE if capture else None, text=True, check=False)
    if ended.returncode != 0:
        raise CommandError(f"`{shlex.join(command[:2])}` failed with exit code {ended.returncode}.")
    return ended.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
