"""What this machine's CPU computes with. Knows torch; does not know vLLM."""
# The types of torch's own operators are partial.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import torch


def computes_bfloat16() -> bool:
    """Whether the CPU multiplies matrices of bfloat16 (AVX-512, AMX, or Arm's own instructions). Others, AVX2 alone as in
    most laptops, take them apart: a prompt is then read in five times the time of float32.
    """
    if not torch.backends.mkldnn.is_available():
        return True  # a build of torch for another kind of machine: what it does is its own affair
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (torch has no public name for it)
