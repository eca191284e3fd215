"""Checks of what this machine can compute and compile without a GPU."""

# The types of torch's own operators are partial.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import shutil
import sys


def computes_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16 matrices natively (AVX-512, AMX or Arm's instructions).

    CPUs with only AVX2, as in most laptops, emulate it: reading a prompt takes five times as long as with float32.
    """
    import torch  # seconds, which `can_compile` does not need

    if not torch.backends.mkldnn.is_available():
        return True  # torch was built for a different kind of machine, which cannot be checked here
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (torch has no public name for it)


def can_compile() -> bool:
    """Return whether the C++ compiler that torch's inductor uses is installed."""
    return (
        shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")) is not None
    )
