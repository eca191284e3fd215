"""The garbage collector of a process that serves leaves start-up alone, and still finds circles."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from serving.garbage import YOUNG_OBJECTS, tune_garbage_collection

class Circle:
    def __init__(self):
        self.itself = self

tune_garbage_collection()
assert gc.get_freeze_count() > 1000, "what was there by then"
gone = weakref.ref(Circle())
kept = [[] for _ in range(2 * YOUNG_OBJECTS)]
assert gone() is None, "found without being asked"
"""


def test_what_is_there_at_the_end_of_start_up_is_left_out_and_later_circles_are_found() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
