"""Programs: kernels that IREE makes of torch's operators compute what torch computes in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import launched
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.values import Value
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS
from dispatch_profiler.boo.kernels import prepare_kernels
from dispatch_profiler.errors import OperationError
from dispatch_profiler.runtime.device_uri import DeviceUri

IMAGE = (2, 8, 8, 12)
#: Each returns several results of one program.
FUNCTIONS: dict[str, Callable[[Any], list[Any]]] = {
    "pools of large windows": lambda x: [
        functional.adaptive_avg_pool2d(x, 1),
        functional.adaptive_avg_pool2d(x, (1, 2)),
    ],
    "norms": lambda x: [
        torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True),
        functional.normalize(x, dim=-1),
        x * (x.pow(2).mean(-1, keepdim=True) + 0.5).pow(-0.5),
    ],
    "moves": lambda x: [
        functional.pad(x, (1, 2, 0, 1), value=0.5),
        functional.pad(x, (0, 0, 0, 0, 1, 2)),
        torch.stack([x, -x], -1),
        x.reshape(2, 8, 2, 4, 3, 4).permute(0, 2, 4, 3, 5, 1).reshape(12, 16, 8),
    ],
    "reductions": lambda x: [
        x.mean((2, 3)),
        x * x.mean((2, 3), keepdim=True).sigmoid(),
        x.amax((1,), keepdim=True) + x.sum((2,)).unsqueeze(2),
        x.amin((1, 2)),
        functional.softmax(x.flatten(2), -1),
        functional.softmax(x, 1),
        torch.ops.aten._safe_softmax(x, -1),
        torch.ops.aten._safe_softmax(x, 1),
    ],
    "batch norm": lambda x: [
        functional.batch_norm(x, *(torch.full((8,), each) for each in (0.5, 2.0, 1.5, -0.5))),
        functional.batch_norm(x, torch.full((8,), 0.25), torch.full((8,), 0.5)),
    ],
    "activations": lambda x: [
        functional.hardswish(x * 3),
        functional.hardsigmoid(x * 3 - 1),
        functional.silu(x) / 2,
        functional.gelu(x),
        functional.gelu(x, approximate="tanh"),
        functional.elu(x, 0.5),
        functional.leaky_relu(x, 0.1),
        functional.hardtanh(x),
        (x * 2).relu(),
    ],
    "arithmetic": lambda x: [
        x.clamp(-1, 0.5),
        x.clamp(max=0.25),
        x.clamp(min=0.25),
        x.abs().sqrt(),
        torch.exp(-x.abs()),
        torch.rsqrt(x.abs() + 1),
        (x.abs() + 1).reciprocal(),
        (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -1,
        torch.ops.aten.rsub.Scalar(torch.ops.aten.mul.Scalar(x, 3), 2.0),
        torch.ops.aten.div.Scalar(torch.ops.aten.add.Scalar(torch.ops.aten.sub.Scalar(x, 1), 2), 3),
        torch.maximum(x, x.tanh()),
        torch.minimum(x.sigmoid(), x),
        torch.round(x * 8),
        (x.permute(0, 2, 3, 1) * torch.arange(8.0)).transpose(1, 2).unsqueeze(1),
    ],
}


pytestmark = pytest.mark.usefixtures("kernels_of_this_run")


@pytest.fixture(scope="module")
def programs() -> dict[str, OperatorProgram]:
    return {name: program_of(function) for name, function in FUNCTIONS.items()}


def program_of(function: Callable[[Any], list[Any]]) -> OperatorProgram:
    """The program behind a convolution, whose result is in channels_last memory."""
    weight = torch.randn(8, 3, 1, 1)
    x = torch.randn(IMAGE[0], 3, *IMAGE[2:])
    graph = inference_graph(
        lambda x, w: [each + 1.0 for each in function(functional.conv2d(x, w) * 1.0)], x, weight
    ).graph
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    (found,) = find_glue(graph, regions)
    assert isinstance(found.spec.operation, OperatorProgram)
    assert found.spec.operation.inputs[0] == Value(IMAGE, "f32", "channels")
    return found.spec.operation


def drawn(program: OperatorProgram) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [program.draw(each, program.distributions[0], rng) for each in program.operands]


def test_programs_compute_what_torch_computes(programs: dict[str, OperatorProgram]) -> None:
    assert prepare_kernels(programs.values(), DeviceUri("local-task"), 2) == {}
    for name, program in programs.items():
        operands = drawn(program)
        if name == "batch norm":
            operands = [operands[0], *map(np.abs, operands[1:])]
        pairs = zip(launched(program, operands), program.reference(operands), strict=True)
        for number, (found, reference) in enumerate(pairs):
            assert reference.tolerance is not None
            difference = np.abs(found - reference.expected)
            assert (difference <= reference.tolerance).all(), (name, number, difference.max())


def test_programs_pass_on_what_is_no_number(programs: dict[str, OperatorProgram]) -> None:
    for name, program in programs.items():
        operands = drawn(program)
        operands[0][0, 3, 5, 2] = np.nan
        operands[0][1, :, :, 1] = -np.inf
        operands[0][1, 2, 3, 4] = np.inf
        pairs = zip(launched(program, operands), program.reference(operands), strict=True)
        for number, (found, reference) in enumerate(pairs):
            expected = reference.expected
            assert np.array_equal(np.isnan(found), np.isnan(expected)), (name, number)
            infinite = np.isinf(expected)
            assert np.array_equal(found[infinite], expected[infinite]), (name, number)


@pytest.mark.slow
def test_an_elu_of_small_numbers_is_precise() -> None:
    function = torch.compile(
        lambda x, w: functional.elu(functional.conv2d(x, w), 0.5), backend=backend(strict=True), dynamic=False
    )
    x = -torch.logspace(-38, 2, 64).reshape(1, 1, 8, 8)
    with torch.no_grad():
        found = function(x, torch.ones(1, 1, 1, 1))
    # The elu of torch 2.6 is 0 for small numbers, also in f64.
    torch.testing.assert_close(found.double(), 0.5 * torch.expm1(x.double()), rtol=1e-6, atol=0.0)


def test_plain_data_is_the_program(programs: dict[str, OperatorProgram]) -> None:
    for program in programs.values():
        data = json.loads(json.dumps(program.to_dict()))
        assert data.pop("kind") == OperatorProgram.kind
        assert OperatorProgram.from_dict(data) == program


@pytest.mark.parametrize(
    "values",
    [
        {"calls": "[]"},
        {"calls": "{"},
        {"calls": '[["system",["ls"],{}]]'},
        {"calls": '[["relu",[{"value":1}],{}]]'},
        {"calls": '[["relu",[{"value":-1}],{}]]'},
        {"calls": '[["relu",[{"value":true}],{}]]'},
        {"calls": '[["relu",[{"value":0}]]]'},
        {"calls": "[" * 100_000},
        {"title": "a b"},
        {"title": ""},
        {"returned": [2]},
        {"returned": [1, 1]},
        {"returned": []},
        {"inputs": [[[1, 0], "f32", "rows"]]},
        {"inputs": [[[2, 3], "f32", "channels"]]},
        {"inputs": [[[2, 3], "i32", "rows"]]},
        {"inputs": [[[2, 3], "f32", "columns"]]},
        {"inputs": [[2, 3]]},
        {"inputs": None},
        {"outputs": [[[2] * 6, "f32", "rows"]]},
    ],
)
def test_damaged_data_is_an_error(values: dict[str, Any]) -> None:
    data = OperatorProgram.smallest().to_dict() | values
    del data["kind"]
    with pytest.raises(OperationError):
        OperatorProgram.from_dict(data)
