import shutil
from pathlib import Path

import pytest

from podium.docs.errors_page import cause
from podium.docs.generated import GENERATORS, check, render_page, write
from serving.errors import TABLE
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("without_collector")


@pytest.mark.parametrize("page", GENERATORS)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text("utf-8") == render_page(page), "run `podium docs`"


def test_an_outdated_page_is_reported_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs/settings.md"
    current = page.read_text("utf-8")
    page.write_text(current.replace("## conductor\n", "## leader\n"), "utf-8")
    assert check(tmp_path) == 1
    assert capsys.readouterr().err == "docs/settings.md is out of date. Run `podium docs`.\n"
    assert write(tmp_path) == 0
    assert capsys.readouterr().out == "docs/settings.md\n"
    assert page.read_text("utf-8") == current
    assert check(tmp_path) == 0


def test_a_page_without_markers_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/settings.md").write_text("# All settings\n")
    with pytest.raises(LookupError, match=r"settings\.md has no markers around its generated part"):
        render_page("docs/settings.md", tmp_path)


def test_every_error_code_has_a_cause_and_a_remedy() -> None:
    texts = {row.code: (cause(error_class), row.remedy) for error_class, row in TABLE.items()}
    assert {code for code, pair in texts.items() if not all(text.endswith(".") for text in pair)} == set()
