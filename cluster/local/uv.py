"""Install packages with the pinned uv in `.venv`, using the configuration of pip.

uv reads its own configuration, not pip's. But mirrors, proxies, local wheels and constraints are usually
configured for pip, so this module passes them to uv in `UV_...` variables. Variables are used because other
accounts can read command lines, and the URL of an index may contain a password. A variable that the user has
set takes precedence. Constraints, and `no-index`, for which uv has no variable, are passed as options.

The lock lists every package with the SHA-256 hashes of its files. uv rejects a file with another hash, and a
package that is not in the lock.

This module imports only the standard library.
"""

from __future__ import annotations

import ast
import functools
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from serving import ROOT

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LOCK = ROOT / "requirements" / "all.lock"
"""Lock file with the version and hashes of every package of every stage, including uv itself."""
LEFT_OUT = ROOT / "requirements" / "left_out.txt"
"""List of packages that must not be installed although other packages depend on them."""

EXTRAS = ("cpu", "dev", "training", "evaluation", "console", "browser", "site", "bom")
"""Extras of pyproject.toml that are in the lock."""
OLDEST = "--python-version=3.11"
"""uv option for the oldest Python that Podium supports: `redis` needs a further package on 3.11.2, Debian 12's."""
IMAGE = ("--python-version=3.12", "--python-platform=x86_64-manylinux_2_28", "--no-annotate")
"""uv options for the platform of the image of `cluster/ray.Dockerfile` and of a cluster's nodes."""
IMAGE_LOCKS: dict[Path, tuple[str, ...]] = {
    ROOT / "requirements" / "image.lock": (),
    ROOT / "requirements" / "image_gpu.lock": ("--extra=gpu",),
}
"""Lock file of each image with further uv options. They include setuptools, which builds the project."""
CPU_BUILDS = ("UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_TORCH_BACKEND")
"""Variables with which uv finds the CPU build of torch here. They are removed for other platforms."""
ENTRY = re.compile(r"^(\S+==[^\\\n]*[^\s\\]) \\\n((?:    --hash=.*\n)+)", re.MULTILINE)
"""Entry of a lock file: a requirement and its hashes."""
HASH = re.compile(r"sha256:[0-9a-f]{64}")

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""uv's environment variable for each option of pip."""
SEPARATORS = {"extra-index-url": " ", "find-links": ",", "trusted-host": " "}
"""Separator of uv's variable for options with several values, which pip separates by spaces."""
TRUE = ("y", "yes", "t", "true", "on", "1")
"""Values that pip reads as true, in lower case."""
LIKE_PIP = {
    "UV_INDEX_STRATEGY": "unsafe-best-match",  # search all indexes and take the best version
    "UV_SYSTEM_CERTS": "true",
    "UV_PYTHON_DOWNLOADS": "never",
}


def entry_of(name: str) -> str:
    """Return a package's entry in the lock with its hashes, a valid requirements file, or raise ValueError."""
    entry = re.search(rf"^{name}==.*\n(?:    --hash=.*\n)+", LOCK.read_text(), re.MULTILINE)
    if entry is None:
        raise ValueError(f"{LOCK} has no entry with hashes for {name}. Run `make lock` to add it.")
    return entry.group()


def lock_version(name: str) -> str:
    return entry_of(name).split()[0]


def pip_options(output: str) -> dict[str, str]:
    """Parse `pip config list`. The environment overrides `install`, which overrides `global`. Ignore empty
    values.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in output.splitlines():
        key, _, quoted = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections and (value := str(ast.literal_eval(quoted)).strip()):
            sections[section][option] = value
    return sections["global"] | sections["install"] | sections[":env:"]


def has_no_index(options: Mapping[str, str]) -> bool:
    """Return whether pip's configuration forbids the use of an index (`no-index`)."""
    return options.get("no-index", "").lower() in TRUE


def variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make uv behave as pip does with these options.

    They also make uv find the CPU build of torch, which PyPI does not have. If pip is configured with further
    indexes or find-links, or without any index, these are expected to provide the build. Otherwise uv uses
    PyTorch's CPU index, https://download.pytorch.org/whl/cpu, for torch only.
    """
    result: dict[str, str] = {}
    for option, variable in VARIABLES.items():
        if value := options.get(option):
            separator = SEPARATORS.get(option)
            result[variable] = separator.join(value.split()) if separator else value
    if timeout_s := result.get("UV_HTTP_TIMEOUT"):
        result["UV_HTTP_TIMEOUT"] = whole_seconds(timeout_s)
    if not result.keys() & {"UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"} and not has_no_index(options):
        result["UV_TORCH_BACKEND"] = "cpu"
    return LIKE_PIP | result


def whole_seconds(text: str) -> str:
    """Round seconds such as `2.5` up, as uv requires. Keep other text, which uv rejects."""
    try:
        return str(math.ceil(float(text)))
    except (ValueError, OverflowError):
        return text


@functools.cache
def pip_config() -> dict[str, str]:
    """Return pip's configuration, from the files of this account and of `.venv`."""
    command = [str(PYTHON), "-m", "pip", "config", "list", "--disable-pip-version-check"]
    return pip_options(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def environment() -> dict[str, str]:
    """Return this process's environment, with pip's configuration added as variables of uv."""
    return variables(pip_config()) | os.environ


def lock_options() -> list[str]:
    """Return options of `uv pip install` for locked versions without `LEFT_OUT`. Build packages have hashes
    too.
    """
    files = [str(LOCK), *pip_config().get("constraint", "").split()]
    constraints = [word for file in files for word in ("--constraints", file)]
    return [*constraints, "--build-constraints", str(LOCK), "--excludes", str(LEFT_OUT)]


def hash_options(extras: Sequence[str]) -> list[str]:
    """Return options of `uv pip install` for extras with hashes. The project and pip's constraints have none,
    so a second command follows.
    """
    packages = ["--requirements", "pyproject.toml", *(f"--extra={name}" for name in extras)]
    return ["--require-hashes", "--constraints", str(LOCK), "--excludes", str(LEFT_OUT), *packages]


def pip_command(verb: str, *arguments: str) -> list[str]:
    """Return the command `uv pip VERB` for `.venv`, with an index only if pip's configuration allows one."""
    options = ["--no-index"] if has_no_index(pip_config()) else []
    return [str(UV), "pip", verb, "--python", str(PYTHON), *options, *arguments]


def pip(verb: str, *arguments: str, without: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run `uv pip VERB` and wait for it. The environment variables in `without` are removed."""
    env = {name: value for name, value in environment().items() if name not in without}
    command = pip_command(verb, *arguments)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def compile_lock(path: Path, *arguments: str, without: Sequence[str] = ()) -> str:
    """Update the lock file at `path`, and return its text. Versions stay if `arguments` allow that."""
    layout = ["--no-header", "--annotation-style=line", "--generate-hashes", "--output-file", str(path)]
    result = pip("compile", *arguments, *layout, without=without)
    print(result.stderr, file=sys.stderr)
    if result.returncode != 0:
        raise SystemExit(result.returncode)
    return path.read_text()


def keep_hashes(before: str, now: str) -> str:
    """Return the lock `now` with hashes that `before` has for the same versions on other platforms."""
    hashes_before = {entry[1]: entry[2] for entry in ENTRY.finditer(before)}

    def merge(entry: re.Match[str]) -> str:
        hashes = sorted({*HASH.findall(entry[2]), *HASH.findall(hashes_before.get(entry[1], ""))})
        return f"{entry[1]} \\\n" + " \\\n".join(f"    --hash={each}" for each in hashes) + "\n"

    return ENTRY.sub(merge, now)


def make_lock() -> None:
    """Update all lock files (`make lock`)."""
    before = LOCK.read_text()
    extras = [f"--extra={name}" for name in EXTRAS]
    text = compile_lock(LOCK, "pyproject.toml", *extras, "--excludes", str(LEFT_OUT), OLDEST)
    text = re.sub(r"^(torch==\S+\+cpu) ", r"\1 ; sys_platform == 'linux' ", text, flags=re.MULTILINE)
    with TemporaryDirectory() as folder:
        (torch_file := Path(folder) / "torch.in").write_text(lock_version("torch").partition("+")[0])
        mac = ["--python-platform=macos", "--no-deps", "--no-annotate"]
        os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
        torch = compile_lock(Path(folder) / "torch.txt", str(torch_file), *mac, without=CPU_BUILDS)
        LOCK.write_text(keep_hashes(before, text + torch.replace(" \\", " ; sys_platform != 'linux' \\", 1)))
        (build := Path(folder) / "build.in").write_text(lock_version("setuptools"))
        for path, more in IMAGE_LOCKS.items():
            compile_lock(path, "pyproject.toml", str(build), *IMAGE, *more, without=CPU_BUILDS)


if __name__ == "__main__":
    make_lock()
