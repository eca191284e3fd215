"""cluster/Dockerfile and cluster/ray.Dockerfile, checked by hadolint's rules without a build."""

import fnmatch
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "cluster" / "ray.Dockerfile").read_text()
SERVER = (ROOT / "cluster" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(text: str = TEXT) -> list[tuple[str, str]]:
    """Return each instruction with its arguments, without comments and with continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    return [
        (name.upper(), rest)
        for name, rest in (line.split(" ", 1) for line in lines.replace("\\\n", "").splitlines())
    ]


def of(name: str, text: str = TEXT) -> list[str]:
    return [rest for each, rest in instructions(text) if each == name]


@pytest.mark.parametrize("text", [TEXT, SERVER], ids=["ray", "server"])
def test_every_dockerfile_instruction_is_known(text: str) -> None:
    names = {"ARG", "FROM", "USER", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "EXPOSE", "CMD", "HEALTHCHECK"}
    assert {name for name, _ in instructions(text)} <= names


def test_the_base_image_must_be_a_digest() -> None:
    assert of("ARG") == ["BASE", "BASE", "EXTRA=gpu"], "without a default, and once more for the check inside"
    assert of("FROM") == ["${BASE}"]
    check = next(run for run in of("RUN") if "sha256" in run)
    assert TEXT.index(check) < TEXT.index("pip install")

    def ends(base: str) -> int:
        return subprocess.run(["sh", "-c", check], env={"BASE": base, "PATH": os.environ["PATH"]}).returncode

    digest = f"@sha256:{'0a' * 32}"
    assert ends(f"rayproject/ray-llm{digest}") == ends(f"rayproject/ray-llm:2.60.0{digest}") == 0
    for base in (
        "",
        "rayproject/ray-llm",
        "rayproject/ray-llm:2.60.0",
        "x@sha256:0a",
        f"x{digest}:latest",
        f"{digest}0",
    ):
        assert ends(base) == 1, base


def test_the_servers_base_image_is_a_digest_or_a_local_one() -> None:
    default = next(each.partition("=")[2] for each in of("ARG", SERVER) if each.startswith("BASE="))
    check = next(run for run in of("RUN", SERVER) if "sha256" in run)

    def ends(base: str) -> int:
        return subprocess.run(["sh", "-c", check], env={"BASE": base, "PATH": os.environ["PATH"]}).returncode

    digest = f"@sha256:{'0a' * 32}"
    assert ends(default) == ends("localhost/podium-base") == ends(f"python:3.11{digest}") == 0
    assert [ends(base) for base in ("", "python:3.11", "docker.io/localhost/x", f"{digest}0")] == [1] * 4
    assert of("FROM", SERVER) == ["${BASE} AS build", "${BASE}"]


def test_the_server_image_installs_from_the_lock_by_hash() -> None:
    runs = " && ".join(of("RUN", SERVER))
    installs = re.findall(r"\b(?:uv )?pip install [^&]*", runs)
    assert len(installs) == 4
    for each in installs:
        assert "--require-hashes" in each or each.split() == [
            *("uv", "pip", "install", "--compile-bytecode", "--no-deps", "/tmp/podium-*.whl")
        ]
    assert "local_models && chmod -R a+rX models && settings" in runs, (
        "any user reads them; without them it fails"
    )
    lock = (ROOT / "requirements" / "all.lock").read_text()
    for name in ("uv", "cyclonedx-bom"):
        assert re.search(rf"^{name}==\S+ \\\n    --hash=sha256:", lock, re.MULTILINE), name
    script = re.search(r"awk '([^']+)' requirements/all.lock", runs)
    assert script
    entry = subprocess.run(
        ["awk", script[1], "requirements/all.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.fullmatch(r"uv==\S+ \\\n(    --hash=sha256:\w{64}( \\)?\n)+", entry)
    assert "PYC_INVALIDATION_MODE=UNCHECKED_HASH" in " ".join(of("ENV", SERVER)), "Buildah rounds file times"
    assert of("COPY", SERVER)[-1] == "--from=build /opt /opt", "the rest of the build is not in the image"


def test_the_server_image_has_a_user_a_volume_and_a_health_check() -> None:
    assert of("USER", SERVER) == ["1000:100"]
    assert of("VOLUME", SERVER) == ["/data"]
    assert "/readyz" in of("HEALTHCHECK", SERVER)[0]
    environment = " ".join(of("ENV", SERVER))
    assert "XDG_DATA_HOME=/data" in environment
    assert not re.search(r"(KEY|TOKEN|SECRET|PASSWORD)\w*=", environment + " ".join(of("ARG", SERVER)))
    command = of("CMD", SERVER)[0]
    assert json.loads(command)[:4] == ["podium", "serve", "--host", "0.0.0.0"]


def test_the_base_image_has_the_projects_ray_version() -> None:
    import ray

    named = set(re.findall(r"rayproject/[\w-]+:[\w.-]+", TEXT))
    of_nodes = re.findall(r"rayproject/ray-llm:[\w.-]+", (ROOT / "ray_cluster.yaml").read_text())
    assert {name for name in named if "llm" in name} == {*of_nodes}
    assert all(f":{ray.__version__}-py312" in name for name in named)


def test_the_image_installs_from_the_locks_by_hash_and_without_a_cache() -> None:
    installs = [
        command
        for run in of("RUN")
        for command in run.split("&&")
        if re.search(r"\b(pip|uv|npm|apt\S*) ", command)
    ]
    hashed, own = installs
    assert "--no-deps --require-hashes -r requirements/image${EXTRA:+_$EXTRA}.lock" in hashed
    assert "--no-deps podium-*.whl" in own
    assert all("--no-cache-dir" in command for command in installs)
    for lock, extras in ("image.lock", ()), ("image_gpu.lock", ("gpu",)):
        locked = {
            canonicalize_name(name): version
            for name, version in re.findall(
                r"^([\w.-]+)==([^ ]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE
            )
        }
        assert "setuptools" in locked, "the nodes of a cluster build the project with what is installed"
        requirements = [Requirement(each) for each in PROJECT["dependencies"]]
        requirements += [
            Requirement(each) for extra in extras for each in PROJECT["optional-dependencies"][extra]
        ]
        for requirement in requirements:
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize(
    "path", ["ray_cluster.yaml", "cluster/ray_cluster.gcp.yaml", "cluster/ray_cluster.onprem.yaml"]
)
def test_the_clusters_nodes_install_from_the_same_locks(path: str) -> None:
    commands = [line for line in (ROOT / path).read_text().splitlines() if "pip install" in line]
    assert len(commands) == 2
    for command in commands:
        hashed, own = re.findall(r"pip install [^&]*", command)
        assert re.fullmatch(
            r"pip install --no-deps --require-hashes -r requirements/image(_gpu)?\.lock ", hashed
        )
        assert own.split() == ["pip", "install", "--no-deps", "--no-build-isolation", "-e", "."]


def test_the_image_does_not_run_as_root() -> None:
    uid = of("USER")[-1].split(":")[0]
    assert uid.isdigit(), "a number, so that Kubernetes can tell"
    assert int(uid) > 0


def test_weights_are_in_a_volume_and_the_image_contains_no_key() -> None:
    assert of("VOLUME") == ["/models"]
    environment = " ".join(of("ENV"))
    assert "HF_HOME=/models" in environment
    names = re.findall(r"(\w+)=", environment + " " + " ".join(of("ARG")))
    assert not [name for name in names if re.search(r"KEY|TOKEN|SECRET|PASSWORD", name)]


def test_the_dockerignore_allows_exactly_the_copied_files() -> None:
    rules = [r for r in (ROOT / ".dockerignore").read_text().splitlines() if r and not r.startswith("#")]
    copied = [
        part
        for text in (TEXT, SERVER)
        for rest in of("COPY", text)
        for part in rest.removeprefix("--chown=1000:100 ").split()[:-1]
        if not rest.startswith("--from")
    ]

    def sent(path: str) -> bool:
        ignored = False
        for rule in rules:
            pattern = rule.removeprefix("!")
            parents = [path, *(str(each) for each in Path(path).parents if str(each) != ".")]
            if any(
                fnmatch.fnmatch(each, pattern) and each.count("/") == pattern.count("/") for each in parents
            ):
                ignored = not rule.startswith("!")
        return not ignored

    assert set(copied) == {
        "requirements",
        "pyproject.toml",
        "dist/podium-*.whl",
        "cluster/haproxy_guarded.sh",
    }
    assert all(
        map(
            sent,
            ["requirements/all.lock", "pyproject.toml", "dist/podium-1.whl", "cluster/haproxy_guarded.sh"],
        )
    )
    assert not any(
        map(
            sent,
            [
                ".git/config",
                ".env",
                "models/a.safetensors",
                "tests/conftest.py",
                "cluster/podium.env",
                "cluster/a.pem",
                "cluster/compose/.env",
            ],
        )
    )
