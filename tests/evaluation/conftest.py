"""The learned routers use one thread of PyTorch, as tests of training do."""

from tests.training.conftest import one_thread  # noqa: F401
