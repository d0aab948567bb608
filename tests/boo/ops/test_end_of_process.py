"""A program that uses the operators ends quietly: nothing of torch's keeps devices of IREE alive."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch
from dispatch_profiler.boo.ops import boo_conv
w = torch.randn(4, 4, 3, 3, requires_grad=True)
y = boo_conv(torch.randn(1, 4, 8, 8), w)
z = torch.ops.dispatch_profiler.convolution(w, w, None, [1, 1], [0, 0], [1, 1], 1, "NHWC")
y.sum().backward(retain_graph=True)
"""


@pytest.mark.slow
def test_nothing_is_printed(shared_cache: None):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
