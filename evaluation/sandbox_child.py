"""Child process inside the sandbox. It drops its privileges, then runs a program. `sandbox.py` starts it.

Modules that such programs use are imported before the limits apply.
"""

# ruff: noqa: F401
# pyright: reportUnusedImport=false
import abc
import array
import bisect
import cmath
import collections
import contextlib
import copy
import ctypes
import dataclasses
import datetime
import decimal
import encodings.idna
import enum
import fractions
import functools
import hashlib
import heapq
import inspect
import io
import itertools
import json
import math
import numbers
import operator
import os
import queue
import random
import re
import resource
import socket
import statistics
import string
import struct
import sys
import textwrap
import threading
import time
import traceback
import types
import typing

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
UNPRIVILEGED_ID = 65534


def confine(cpu_s: int, memory_bytes: int) -> bool:
    """Drop network access and root, and set the limits. Return whether the network is cut off."""
    libc = ctypes.CDLL(None, use_errno=True)
    was_root = os.geteuid() == 0
    no_network = libc.unshare(NEW_NETWORK if was_root else NEW_USER | NEW_NETWORK) == 0
    if was_root:
        os.setgroups([])
        os.setgid(UNPRIVILEGED_ID)
        os.setuid(UNPRIVILEGED_ID)
    for limit, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 1_000_000),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    return no_network


def run_tests(program: str, tests: str) -> str:
    """Run the program, then its tests. Return why they failed, or "" if they passed."""
    namespace = {"__name__": "program"}
    part = "the program"
    try:
        exec(compile(program, "program", "exec"), namespace)  # noqa: S102
        part = "a test"
        exec(compile(tests, "tests", "exec"), namespace)  # noqa: S102
    except BaseException as exc:  # noqa: BLE001  (an untrusted program may raise anything, SystemExit too)
        return f"{part} failed: {type(exc).__name__}: {str(exc)[:200]}"
    return ""


def main() -> None:
    """Read the job from standard input and write the verdict to the original standard output."""
    order = json.loads(sys.stdin.read())
    verdict = os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(devnull, standard)
    no_network = confine(order["cpu_s"], order["memory_bytes"])
    why = run_tests(order["program"], order["tests"])
    result = {"passed": not why, "why": why, "no_network": no_network}
    os.write(verdict, f"\n{order['token']}{json.dumps(result)}\n".encode())


if __name__ == "__main__":
    main()
