"""cluster/Dockerfile, read and not built: no Docker here. What hadolint would say of it, as far as it applies."""

import fnmatch
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "cluster" / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined, comments left out."""
    lines = "\n".join(line for line in TEXT.splitlines() if line and not line.startswith("#"))
    return [
        (name.upper(), rest)
        for name, rest in (line.split(" ", 1) for line in lines.replace("\\\n", "").splitlines())
    ]


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_every_instruction_is_one() -> None:
    known = {"ARG", "FROM", "USER", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "EXPOSE", "CMD"}
    assert {name for name, _ in instructions()} <= known


def test_the_base_is_pinned_to_the_ray_of_this_project() -> None:
    import ray

    default = next(rest for rest in of("ARG") if rest.startswith("BASE="))
    assert re.fullmatch(rf"BASE=rayproject/ray-llm:{re.escape(ray.__version__)}-py312-cu\d+", default)
    assert of("FROM") == ["${BASE}"]
    assert default.removeprefix("BASE=") in (ROOT / "ray_cluster.yaml").read_text()


def test_it_installs_the_gpu_extra_and_keeps_no_cache() -> None:
    assert "EXTRA=gpu" in of("ARG")
    installs = [command for run in of("RUN") for command in run.split("&&") if "pip install" in command]
    assert any("EXTRA" in command for command in installs)
    assert all("--no-cache-dir" in command for command in installs)


def test_it_does_not_run_as_root() -> None:
    uid = of("USER")[-1].split(":")[0]
    assert uid.isdigit(), "a number, so that Kubernetes can tell"
    assert int(uid) > 0


def test_weights_are_in_a_volume_and_no_key_is_in_it() -> None:
    assert of("VOLUME") == ["/models"]
    environment = " ".join(of("ENV"))
    assert "HF_HOME=/models" in environment
    names = re.findall(r"(\w+)=", environment + " " + " ".join(of("ARG")))
    assert not [name for name in names if re.search(r"KEY|TOKEN|SECRET|PASSWORD", name)]


def test_what_it_copies_is_let_through_and_the_rest_is_not() -> None:
    rules = [r for r in (ROOT / ".dockerignore").read_text().splitlines() if r and not r.startswith("#")]
    copied = [part for rest in of("COPY") for part in rest.split()[1:-1]]

    def sent(path: str) -> bool:
        ignored = False
        for rule in rules:
            pattern = rule.removeprefix("!").removeprefix("**/")
            parts = (
                [path, *path.split("/")]
                if rule.removeprefix("!").startswith("**/")
                else [path, path.split("/")[0]]
            )
            if any(fnmatch.fnmatch(part, pattern) for part in parts):
                ignored = not rule.startswith("!")
        return not ignored

    assert "evaluation" in copied, (
        "a worker that ships is there: docs/operations.md, workers that are programs"
    )
    assert all((ROOT / path).exists() and sent(path) for path in copied)
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
            ],
        )
    )
