"""Programs that compute row by row: norms, softmax and quantisation as one kernel, compared with torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import launched

from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.row_expressions import row_program
from dispatch_profiler.boo.fusion.programs.rows import row_text
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
functional: Any = torch.nn.functional


def rms_norm(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def quantised(x: Any) -> Any:
    scale = torch.clamp(x.abs().amax(-1, keepdim=True) / 127.5, 1e-7)
    return torch.clamp(torch.round(x * scale.reciprocal()), -128, 127).to(torch.int8), scale


def asymmetric(x: Any) -> Any:
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round(-128 - low / scale)
    return torch.clamp(torch.round(x / scale) + zero, -128, 127).to(torch.int8), scale, zero


#: Reductions that follow each other, values of rows as results, columns, what is viewed, and each operator.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rms norm": rms_norm,
    "with a weight": lambda x: rms_norm(x) * torch.linspace(0.5, 2.0, x.shape[-1]),
    "rms norm, quantised": lambda x: quantised(rms_norm(x)),
    "quantised": quantised,
    "asymmetric": asymmetric,
    "layer norm": lambda x: (x - (m := x.mean(-1, keepdim=True))) * ((x - m) ** 2).mean(-1, keepdim=True) ** -0.5,
    "softmax": lambda x: functional.softmax(x * 0.5, -1),
    "sums of rows": lambda x: (y := x.exp().sum(-1, keepdim=True).sqrt(), x.sum(-1, keepdim=True) - y),
    "not kept": lambda x: x - x.amax(-1).unsqueeze(-1),
    "gate": lambda x: functional.silu(x) * torch.sigmoid(-x) / (1.0 + x.abs().sum(-1, keepdim=True)),
    "bounds": lambda x: torch.minimum(x.relu() - 1, x.neg()) + torch.maximum(x, 0.25 * x).amin(-1, keepdim=True),
    "heads": lambda x: rms_norm(x.reshape(x.shape[0], 1, -1)).reshape(x.shape),
}  # fmt: skip


def program_of(function: Callable[[Any], Any], rows: int, columns: int) -> OperatorProgram:
    """The program behind a product, whose result has so many rows and columns."""
    x, weight = torch.randn(rows, 8), torch.randn(8, columns)
    graph = inference_graph(lambda x, weight: function(x @ weight), x, weight).graph
    regions, _ = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    (found,) = find_glue(graph, regions)
    assert isinstance(found.spec.operation, OperatorProgram)
    return found.spec.operation


@pytest.mark.some(12)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (1, 200), (37, 131)])
def test_rows_are_those_of_torch(name: str, rows: int, columns: int) -> None:
    check(name, rows, columns)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_long_rows(name: str) -> None:
    """Of which each sum has a thousand additions one after another."""
    check(name, 2, 65_536)


def check(name: str, rows: int, columns: int) -> None:
    program = program_of(FUNCTIONS[name], rows, columns)
    assert "_kernel" in row_text(program, "function")
    rng = np.random.default_rng(3)
    for distribution in program.distributions:
        operands = [program.draw(each, distribution, rng) for each in program.operands]
        for found, reference in zip(launched(program, operands), program.reference(operands), strict=True):
            assert reference.tolerance is not None
            difference = np.abs(found.astype(np.float64) - reference.expected)
            assert (difference <= reference.tolerance).all(), (name, distribution, difference.max())


@pytest.mark.parametrize("name", ["rms norm", "softmax", "quantised", "not kept"])
def test_rows_pass_on_what_is_no_number(name: str) -> None:
    program = program_of(FUNCTIONS[name], 6, 80)
    rng = np.random.default_rng(4)
    operands = [program.draw(each, program.distributions[0], rng) for each in program.operands]
    operands[0][2, 77] = np.nan
    operands[0][4, 3] = np.inf
    references = zip(program.outputs, launched(program, operands), program.reference(operands), strict=True)
    for value, found, reference in references:
        if value.type != "i8":
            assert np.array_equal(np.isnan(found), np.isnan(reference.expected)), name


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp() * 2 - x,
        lambda x: x - x.amax(0, keepdim=True),
        lambda x: x - x.mean((0, 1), keepdim=True),
        lambda x: x.reshape(4, 32) - x.reshape(4, 32).amax(-1, keepdim=True),
        lambda x: x - functional.gelu(x).amax(-1, keepdim=True),
        lambda x: x[:, :8] - x[:, :8].amax(-1, keepdim=True),
    ],
    ids=["no reduction", "columns", "all", "other rows", "gelu", "short rows"],
)
def test_other_programs_are_left_to_the_compiler(function: Callable[[Any], Any]) -> None:
    with pytest.raises(NotFusible):
        row_text(program_of(function, 8, 16), "function")


def test_a_value_of_rows_that_is_aligned_with_columns_is_none_of_rows() -> None:
    """Of as many rows as columns, torch aligns sums that lack an axis with the columns."""
    with pytest.raises(NotFusible, match="broadcasts along other axes"):
        row_program(program_of(lambda x: x - x.sum(-1), 16, 16))
