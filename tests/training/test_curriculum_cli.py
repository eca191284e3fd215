"""`podium curriculum` as a command."""

import pytest

from training.curriculum.cli import main


def test_show_prints_requests_with_their_teams_and_best_plans(capsys: pytest.CaptureFixture[str]):
    assert main(["show", "--count", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("0: ") >= 3
    assert shown.count('"access"') >= 3


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_an_invalid_count_is_rejected(count: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["show", "--count", count])
    assert ended.value.code == 2
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def test_a_missing_model_folder_is_reported(capsys: pytest.CaptureFixture[str]):
    assert main(["measure", "--count", "1", "--model", "mine=no/such/folder"]) == 1
    assert "The folder no/such/folder does not exist." in capsys.readouterr().err
