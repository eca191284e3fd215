from collections.abc import Iterator

import pytest

from tests.live.default.local import Local, running


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with running(tmp_path_factory.mktemp("local")) as local:
        yield local
