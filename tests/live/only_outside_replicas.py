"""Plugin that passes the checks before the start, but fails in a replica."""

import ray

from serving.workers.scripted import ScriptedWorker


def make(name: str, price: object) -> ScriptedWorker:
    """Return a worker, but raise RuntimeError in a replica."""
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        raise RuntimeError("no replica can make it")
    return ScriptedWorker(name, ["Hi."])
