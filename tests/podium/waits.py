"""Verb that waits until it is stopped."""

import time
from collections.abc import Sequence


def main(_: Sequence[str]) -> int:
    print("waiting", flush=True)
    time.sleep(60)
    return 0
