"""The Arguments of a dispatch, pasted behind `generator.py`, make that dispatch again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from epilogue_helpers import SEQUENCES, SIMPLE, STEP_TEXTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator.cli import main
from dispatch_profiler.operations import (
    ELEMENT_TYPES,
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)

FEW = settings(
    derandomize=True,
    database=None,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


def possible_types() -> Iterator[ElementTypes]:
    for source, result in itertools.product(ELEMENT_TYPES, repeat=2):
        try:
            yield ElementTypes(source, source, result)
        except OperationError:
            continue


def pasted(kind: str, arguments: dict[str, str]) -> list[str]:
    """As a user would paste the report's lines."""
    return [f"--op-kind={kind}", *(f"--{name}={value}" for name, value in arguments.items())]


def rebuilt(operation: Operation, folder: Path) -> list[Dispatch]:
    """What `generator.py` makes of the arguments of `operation` with its default configuration."""
    from dispatch_profiler.configurations import Default

    arguments = pasted(operation.kind, Dispatch(operation, Default()).arguments())
    tree = Tree(folder)
    tree.manifest.unlink(missing_ok=True)
    assert main([f"--generated-dir={folder}", "--default-config=only", "--target=null", *arguments]) == 0
    return [d.dispatch for _, d in load_manifest(tree).dispatches()]


types = st.sampled_from(list(possible_types()))
epilogues = st.sampled_from([*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES))])
extents = st.integers(1, 5000)
layouts = st.sampled_from("tn")
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
margins = st.tuples(st.integers(0, 3), st.integers(0, 3))


def built(make, *values: object, **named: object) -> Operation:
    """The operation, if it is one."""
    try:
        return make(*values, **named)
    except OperationError:
        assume(False)
        raise


@FEW
@given(extents, extents, extents, types, layouts, layouts, epilogues)
def test_a_matmul_is_rebuilt(m, n, k, types, lhs, rhs, epilogue):
    """Exactly the same, and nothing beside it."""
    operation = built(Matmul, m, n, k, types, lhs, rhs, epilogue)
    assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


@FEW
@given(extents, extents, extents, extents, types, layouts, layouts, epilogues)
def test_a_batch_matmul_is_rebuilt(b, m, n, k, types, lhs, rhs, epilogue):
    """A batch of one too."""
    for batch in {b, 1}:
        operation = built(BatchMatmul, batch, m, n, k, types, lhs, rhs, epilogue)
        assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


@FEW
@given(
    st.tuples(*[st.integers(1, 40)] * 3), st.tuples(*[st.integers(1, 4)] * 5), pairs, margins, pairs,
    st.sampled_from(["nhwc", "nchw"]), types, epilogues,
)  # fmt: skip
def test_a_convolution_is_rebuilt(image, small, stride, padding, dilation, layout, types, epilogue):
    """Dense, grouped and depthwise, in both layouts."""
    c, k, r, s, groups = small
    shape = (*image, c * groups, k * groups, r, s)
    operation = built(Conv2d, *shape, stride, padding, dilation, groups, layout, types, epilogue)
    assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


def test_every_dispatch_of_the_predefined_list_is_rebuilt(run):
    """Among what its arguments make; a split with its slices."""
    assert run("generator", "--target=null", "--generated-dir=all", "--epilogue=none,bias+relu").status == 0
    by_arguments: dict[tuple[str, ...], set[Dispatch]] = {}
    for _, entry in load_manifest(Tree(Path("all"))).dispatches():
        dispatch = entry.dispatch
        key = tuple(pasted(dispatch.operation.kind, dispatch.arguments()))
        by_arguments.setdefault(key, set()).add(dispatch)
    assert len(by_arguments) > 40
    for arguments, dispatches in by_arguments.items():
        assert main(["--target=null", "--generated-dir=one", *arguments]) == 0
        one = {d.dispatch for _, d in load_manifest(Tree(Path("one"))).dispatches()}
        assert dispatches <= one
        Tree(Path("one")).manifest.unlink()


@pytest.mark.parametrize("wrong", ["m", "lhs", "epilogue"])
def test_another_argument_makes_another_operation(wrong):
    """The comparison above fails on what is not the same."""
    operation = Matmul(8, 16, 4, epilogue=Epilogue.parse("relu"))
    arguments = {**operation.arguments(), wrong: {"m": "9", "lhs": "f32n", "epilogue": "bias"}[wrong]}
    assert main(["--generated-dir=x", "--default-config=only", *pasted("matmul", arguments)]) == 0
    assert [e.operation for e in load_manifest(Tree(Path("x"))).entries] != [operation]
