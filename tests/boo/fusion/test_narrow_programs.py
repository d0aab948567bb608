"""Programs of bf16 and f16 compute in f32, and round each result once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import launched
from test_attention_programs import BATCH, LAYOUTS, WIDTH, attention_of
from test_channelwise import CHANNELWISE, KERNEL
from test_channelwise import programs_of as channelwise_of
from test_programs import FUNCTIONS, program_of
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.execute.checking import agrees
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.kernels import prepare_kernels
from dispatch_profiler.runtime.device_uri import DeviceUri

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
#: Type -> the largest relative error of rounding to it.
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}


def of_type(program: OperatorProgram, type_: str) -> OperatorProgram:
    inputs, outputs = (
        tuple(replace(each, type=type_) for each in values) for values in (program.inputs, program.outputs)
    )
    return replace(program, inputs=inputs, outputs=outputs)


def check(program: OperatorProgram, rounding: float) -> None:
    """Each result is the number of its type that is nearest to that in float64, but for errors of f32."""
    rng = np.random.default_rng(11)
    operands = [program.draw(each, program.distributions[0], rng) for each in program.operands]
    operands = [np.abs(each) if each.ndim == 1 else each for each in operands]
    for number, (found, reference) in enumerate(
        zip(launched(program, operands), program.reference(operands), strict=True)
    ):
        expected = reference.expected
        error = rounding * np.abs(expected) + 2e-4 * max(1.0, np.abs(expected).max())
        assert (np.abs(found - expected) <= error).all(), (program.title, number)


@pytest.mark.parametrize(
    ("type_", "step"),
    [
        pytest.param("bf16", 3, id="bf16 some"),
        *(pytest.param(each, 1, id=f"{each} all", marks=pytest.mark.slow) for each in ("bf16", "f16")),
    ],
)
def test_operators_that_iree_compiles(type_: str, step: int) -> None:
    programs = [of_type(program_of(each), type_) for each in [*FUNCTIONS.values()][::step]]
    assert prepare_kernels(programs, DeviceUri("local-task"), 2) == {}
    for each in programs:
        check(each, ROUNDING[type_])


@pytest.mark.parametrize("type_", ["bf16", pytest.param("f16", marks=pytest.mark.slow)])
def test_channels_that_are_joined_and_divided(type_: str) -> None:
    for name in ("norm", "split", "shuffle and chunk"):
        for program in channelwise_of(CHANNELWISE[name], (3, 5), 21, torch.channels_last):
            narrow = of_type(program, type_)
            assert KERNEL in narrow.mlir("f")
            check(narrow, ROUNDING[type_])


@pytest.mark.parametrize("type_", ["bf16", pytest.param("f16", marks=pytest.mark.slow)])
@pytest.mark.some(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention(layout: str, type_: str) -> None:
    program = of_type(attention_of(LAYOUTS[layout], torch.randn(BATCH, 21, WIDTH)), type_)
    assert KERNEL in program.mlir("f")
    check(program, ROUNDING[type_])


def test_bf16_is_rounded_as_numpy_rounds() -> None:
    """Ties, subnormal and large numbers, infinities and what is no number; the kernel only joins channels."""
    (program,) = channelwise_of(CHANNELWISE["cat"], (32, 64), 24, torch.channels_last)
    narrowing = replace(program, outputs=tuple(replace(each, type="bf16") for each in program.outputs))
    rng = np.random.default_rng(13)
    operands = []
    for each in narrowing.operands:
        bits = rng.integers(0, 2**32, each.elements, dtype=np.uint32)
        bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # half way between two numbers of bf16
        bits[::7] = rng.choice(np.array([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0], np.uint32))
        operands.append(bits.view(np.float32).reshape(each.shape))
    (found,) = launched(narrowing, operands)
    with np.errstate(all="ignore"):
        expected = np.concatenate(operands, -1).astype(ml_dtypes.bfloat16)
    assert np.array_equal(found, expected.astype(np.float64), equal_nan=True)


def test_wrong_results_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = of_type(program_of(FUNCTIONS["arithmetic"]), "bf16")
    assert agrees(program)
    right = OperatorProgram.reference

    def slightly_off(self: OperatorProgram, *given: Any, **options: Any) -> Any:
        return tuple(replace(each, expected=each.expected * 1.02) for each in right(self, *given, **options))

    monkeypatch.setattr(OperatorProgram, "reference", slightly_off)
    assert not agrees(program)


class Normalized(nn.Module):
    """A norm that is computed in f32 between layers of bf16, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(48, 64), nn.Linear(64, 32)
        self.weight = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        wide = y.float()
        normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.last(self.weight * normalized.to(y.dtype)) + 1.0


def test_conversions_do_not_end_a_run() -> None:
    model, x = Normalized().bfloat16(), torch.randn(24, 48, dtype=torch.bfloat16)
    graph = inference_graph(model, x).graph
    regions, _ = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    programs = [each.spec.operation for each in find_glue(graph, regions)]
    assert {each.type for of in programs for each in (*of.inputs, *of.outputs)} == {"bf16"}
    with torch.no_grad():
        compiled = torch.compile(
            model,
            dynamic=False,
            backend=backend(strict=True, fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, autotune=False),
        )
        found, expected = compiled(x), model.double()(x.double())
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
    assert functional.cosine_similarity(found.double(), expected, dim=-1).min() > 0.9999
