"""Products whose operands have two types: which configurations they have, and that the compiler computes them rightly."""

from __future__ import annotations

import itertools

import pytest
from compiled_helpers import TARGET, verify_compiled

from dispatch_profiler.compiler import BuildError
from dispatch_profiler.configurations import (
    FORMS,
    KINDS,
    Configuration,
    CpuTiles,
    Default,
    DotMicrokernel,
    Flow,
    Formed,
)
from dispatch_profiler.configurations.flows import FLOWS
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import (
    BatchMatmul,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
    natural_result,
)
from dispatch_profiler.targets import parse_target
from dispatch_profiler.targets.untuned.launch_kernels import untuned_kernels

FLOATS = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2")
#: Every pair of types that differ.
PAIRS = list(itertools.permutations((*FLOATS, "i8"), 2))

EPILOGUE = Epilogue.parse("scale_shift+residual+relu6")


def types_of(lhs: str, rhs: str) -> ElementTypes:
    return ElementTypes(lhs, rhs, natural_result(lhs, rhs))


@pytest.mark.some(3)
@pytest.mark.parametrize(("lhs", "rhs"), PAIRS)
def test_no_kernel_that_is_made_for_one_type_takes_two(lhs: str, rhs: str):
    """Neither in the search spaces of the CPUs with most instructions, nor as the first choice of a launch."""
    target = parse_target("llvm-cpu:sapphirerapids")
    operation = Matmul(256, 256, 512, types_of(lhs, rhs), "t", "n")
    limits = target.limits
    spaces = [
        space
        for kind in KINDS.values()
        for space in (*kind.spaces(operation, limits), *kind.packed_spaces(operation, limits))
    ]
    # Dot microkernels have weights of i8, and factors of their own type.
    of_two = {DotMicrokernel} if rhs == "i8" and lhs in ("f32", "f16", "bf16") else set()
    assert {space.kind for space in spaces} <= {Default, CpuTiles, Formed, *of_two}
    for packs in (False, True):
        kinds = {type(each) for each in untuned_kernels(operation, target, packs_weight=packs)}
        for kind in KINDS.values():
            kinds |= {type(each) for each in kind.likely(operation, limits, packed_weights=packs)}
        assert kinds <= of_two


def test_a_flow_says_which_types_it_is_for():
    operation = Matmul(64, 64, 64, types_of("f16", "f32"))
    reasons = {flow: Flow(flow).invalid_reason(operation, TARGET.limits) or "" for flow in FLOWS}
    assert "the flow ukernels affects f32, f16, bf16, i8, not f16xf32" in reasons.values()
    assert all(reasons.values())


def with_configurations(operation: Operation) -> list[Dispatch]:
    """The compiler's default, tiles, slices and every form."""
    chosen: list[Configuration] = [
        Default(),
        Default(split_k=4),
        CpuTiles((16, 32), (4, 16, 1)),
        CpuTiles((64, 64), (8, 32, 4), peel=True),
        *(Formed(form, inner) for form in FORMS for inner in (Default(), CpuTiles((16, 32), (4, 16, 1)))),
    ]
    valid = [each for each in chosen if each.invalid_reason(operation, TARGET.limits) is None]
    return [Dispatch(operation, each) for each in valid]


#: Long sums in slices, batches, remainders of tiles, steps with operands, and narrow results.
OPERATIONS = (
    lambda types: Matmul(64, 96, 80, types, "t", "n", EPILOGUE),
    lambda types: Matmul(64, 96, 80, types, "n", "t"),
    lambda types: Matmul(17, 33, 19, types, "t", "t", Epilogue.parse("bias+relu")),
    lambda types: Matmul(8, 32, 4100, types, "t", "n"),
    lambda types: Matmul(64, 64, 40, ElementTypes(types.lhs, types.rhs, "bf16"), "n", "n"),
    lambda types: BatchMatmul(3, 16, 32, 24, types, "t", "n", EPILOGUE),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "number"),
    [(pair, number) for number, pair in enumerate(PAIRS)],
    ids=lambda x: "x".join(x) if isinstance(x, tuple) else "",
)
def test_every_pair_of_types_is_right_with_every_configuration(pair: tuple[str, str], number: int):
    """Each pair with one of the operations, in turn."""
    operation = OPERATIONS[number % len(OPERATIONS)](types_of(*pair))
    if TARGET.unsupported_reason(operation):
        with pytest.raises(BuildError, match=r"failed to legalize operation 'arith\.extf'"):
            verify_compiled([Dispatch(operation, Default())])
        return
    dispatches = with_configurations(operation)
    assert len(dispatches) > 1
    verify_compiled(dispatches)
