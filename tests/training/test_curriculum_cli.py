"""`podium curriculum` as a command."""

import pytest

from training.curriculum.cli import main


def test_it_shows_requests_with_their_teams_and_best_plans(capsys: pytest.CaptureFixture[str]):
    assert main(["show", "--count", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("0: ") >= 3
    assert shown.count('"access"') >= 3


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_a_count_that_is_none_is_named(count: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["show", "--count", count])
    assert ended.value.code == 2
    assert "is not a whole number of at least 1" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["measure", "--count", "1", "--model", "mine=no/such/folder"]) == 1
    assert "The folder no/such/folder does not exist." in capsys.readouterr().err
