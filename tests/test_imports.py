"""Check of the names that tests import, which `make check` runs."""

from pathlib import Path

from tests.imports import missing


def test_a_missing_name_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "import json\nfrom json import gone\nfrom tests.imports import missing, gone\nfrom tests import imports, nothing\n"
        "def test():\n    from serving.gone import name\nrun = lazy('training.run:gone')\nfine = lazy('training.run:TrainingRun')\n"
    )
    assert missing(path) == [
        f"{path}:3: tests.imports has no gone",
        f"{path}:4: tests has no nothing",
        f"{path}:6: serving.gone has no name",
        f"{path}:7: training.run has no gone",
    ]
