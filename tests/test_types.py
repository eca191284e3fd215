"""Types of all packages. The check takes two minutes of one core, next to the other tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.timeout(900)
def test_the_type_checker_reports_no_errors() -> None:
    checker = Path(sys.executable).with_name("basedpyright")
    checked = subprocess.run(
        [checker, "--level", "error"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
