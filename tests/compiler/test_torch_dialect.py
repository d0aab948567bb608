"""The dialect of IREE's importer is lowered in a worker, which outlives what cannot be lowered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dispatch_profiler.compiler.source.torch_dialect import lowered
from dispatch_profiler.errors import ToolError

RELU = """func.func @f(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %y = torch.aten.relu %x : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  return %y : !torch.vtensor<[2,3],f32>
}
"""


def test_operators_become_linalg_and_what_cannot_be_parsed_costs_only_its_call():
    with pytest.raises(ToolError, match="relu"):
        lowered(RELU.replace("aten.relu", "aten.no_relu"))

    found = lowered(RELU)

    assert "linalg.generic" in found and "torch.aten" not in found


def test_this_process_does_not_load_the_compiler_for_it():
    script = (
        "import sys\nfrom dispatch_profiler.compiler.source.torch_dialect import lowered\n"
        f"print('linalg' in lowered({RELU!r}), [each for each in sys.modules if each.startswith('iree.compiler')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.stdout == "True []\n", done.stderr
