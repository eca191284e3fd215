"""The learned routers compute on one thread, as tests of training do."""

from tests.training.conftest import one_thread  # noqa: F401
