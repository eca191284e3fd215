"""What every layer around one worker has."""

from conductor.model.worker import Worker


class Layer:
    """Goes by the name of the worker that it is around; what it adds is in its `open`.

    Args:
        worker: who is called.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.name = worker.name
