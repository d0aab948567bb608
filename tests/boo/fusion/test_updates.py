"""Updates of caches as programs: kernels write what torch writes, to new memory or to the cache itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS, call_arguments
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.updates import checked_positions, rows_plan
from dispatch_profiler.boo.fusion.programs.values import Value
from dispatch_profiler.boo.fusion.spec import OperandSource, RegionSignature, RegionSpec, RunSpec, parse_run
from dispatch_profiler.boo.launching.torch_types import TYPES
from dispatch_profiler.errors import OperationError, UsageError

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
#: Batch, heads, rows and elements of a cache.
CACHE = (2, 3, 10, 40)
#: Rows as a projection computes them: batch, tokens, heads, elements.
HEADS: list[Any] = [("transpose.int", 1, 2)]


def update(
    count: int,
    type_: str = "f32",
    *,
    operator: str = "index_put",
    cache: tuple[int, ...] = CACHE,
    axis: int = 2,
) -> OperatorProgram:
    """An update of `count` rows of a cache along its axis 2 by transposed rows, or along another axis."""
    shape = (*cache[:axis], count, *cache[axis + 1 :])
    views = HEADS if axis == 2 else []
    if views:
        shape = (shape[0], shape[2], shape[1], *shape[3:])
    calls: list[Any] = [[name, [{"value": 2}, *arguments], {}] for name, *arguments in views]
    rows = {"value": 2 + len(views)}
    where = [{"value": 1}]
    given = [axis, *where, rows] if operator == "index_copy" else [[*[None] * axis, *where], rows]
    calls.append([operator, [{"value": 0}, *given], {}])
    inputs = Value(cache, type_, "rows"), Value((count,), "i32", "rows"), Value(shape, type_, "rows")
    return OperatorProgram("update", inputs, json.dumps(calls), (2 + len(calls),), (inputs[0],))


def region(program: OperatorProgram) -> RegionSpec:
    """The region of a program."""
    sources = tuple(
        OperandSource("positions" if each.type == "i32" else each.reading, (at,))
        for at, each in enumerate(program.inputs)
    )
    results = tuple((each.shape, each.reading) for each in program.outputs)
    return RegionSpec(program, tuple(each.shape for each in program.inputs), sources, results)


def run_of(program: OperatorProgram) -> RunSpec:
    """A run that updates a cache, and computes its negative."""
    value = program.outputs[0]
    negative = OperatorProgram("neg", (value,), '[["neg",[{"value":0}],{}]]', (1,), (value,))
    steps = (region(program), (0, 1, 2)), (region(negative), (3,))
    return RunSpec(3, steps, (4,))


def tensors(program: OperatorProgram) -> tuple[Any, Any, Any]:
    """A cache, positions that differ, and rows."""
    cache, positions, rows = program.inputs
    assert program.update is not None
    return (
        torch.randn(cache.shape).to(TYPES[cache.type]),
        torch.randperm(program.update.extent)[: positions.shape[0]],
        torch.randn(rows.shape).to(TYPES[rows.type]),
    )


def updated(cache: Any, positions: Any, rows: Any) -> Any:
    """What torch computes along axis 2 of `CACHE`."""
    return cache.index_copy(2, positions, rows.transpose(1, 2))


@pytest.mark.parametrize(("type_", "count"), [("f32", 1), ("bf16", 4), ("f16", 10)])
def test_a_launch_returns_a_new_cache(type_: str, count: int) -> None:
    program = update(count, type_)
    cache, positions, rows = tensors(program)
    launch = get_launchable(RegionSignature(program))
    found = launch(cache.reshape(-1), positions.int(), rows.reshape(-1))
    assert torch.equal(found.reshape(CACHE), updated(cache, positions, rows))


@pytest.mark.parametrize(("cache", "axis"), [((5, 7), 0), ((2, 4, 9), 2), ((3, 6, 2, 50), 1)])
def test_rows_are_along_any_axis(cache: tuple[int, ...], axis: int) -> None:
    program = update(2, cache=cache, axis=axis, operator="index_copy")
    if axis == 2:  # with the views
        program = replace(
            program,
            inputs=(*program.inputs[:2], Value((2, 4, 2), "f32", "rows")),
            calls='[["index_copy",[{"value":0},2,{"value":1},{"value":2}],{}]]',
            returned=(3,),
        )
    given, positions, rows = tensors(program)
    found = get_launchable(RegionSignature(program))(given.reshape(-1), positions.int(), rows.reshape(-1))
    assert torch.equal(found.reshape(cache), given.index_copy(axis, positions, rows))


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_writes_to_the_cache(count: int) -> None:
    """The first call launches kernels one by one, later ones as a chain."""
    program = update(count)
    call = RunCall(run_of(program), strict=True)
    kept = torch.randn(CACHE)
    for _ in range(4):
        _, positions, rows = tensors(program)
        expected = updated(kept, positions, rows)
        version = kept._version
        (negative,) = call(kept, positions, rows)
        assert torch.equal(kept, expected)
        assert torch.equal(negative, -expected)
        assert kept._version > version  # autograd knows that saved tensors have changed


def test_torch_writes_to_a_cache_that_has_gaps() -> None:
    program = update(2)
    call = RunCall(run_of(program), strict=True)
    whole = torch.randn(2, 3, 20, 40)
    cache = whole[:, :, ::2]
    _, positions, rows = tensors(program)
    expected = updated(cache, positions, rows)
    (negative,) = call(cache, positions, rows)
    assert torch.equal(cache, expected)
    assert torch.equal(negative, -expected)


def test_caches_in_unaligned_memory_are_written_to() -> None:
    program = update(2)
    call = RunCall(run_of(program), strict=True)
    for _ in range(3):
        cache = torch.randn(2 * 3 * 10 * 40 + 1)[1:].reshape(CACHE)
        _, positions, rows = tensors(program)
        expected = updated(cache, positions, rows)
        call(cache, positions, rows)
        assert torch.equal(cache, expected)


@pytest.mark.parametrize(
    ("operator", "positions", "message"),
    [
        ("index_put", [3, 10], "index 10 is out of bounds for dimension 2 with size 10"),
        ("index_put", [-11, 3], "index -11 is out of bounds"),
        ("index_copy", [-1, 3], "index -1 is out of bounds"),
    ],
)
def test_positions_outside_of_the_cache_are_errors(operator: str, positions: list[int], message: str) -> None:
    """As in torch, and nothing is written."""
    program = update(2, operator=operator)
    cache, _, rows = tensors(program)
    before = cache.clone()
    call = RunCall(run_of(program))
    with pytest.raises(IndexError, match=message):
        call(cache, torch.tensor(positions), rows)
    assert torch.equal(cache, before)
    assert call.repeated([cache, torch.tensor(positions), rows]) is None  # they are checked in each call


def test_negative_positions_count_from_the_end() -> None:
    found = update(3).update
    assert found is not None
    assert checked_positions(found, torch.tensor([-1, 0, -10])).tolist() == [9, 0, 0]


@pytest.mark.parametrize(
    "call",
    [
        ["index_put", [{"value": 0}, [None, {"value": 1}, {"value": 1}], {"value": 2}], {}],
        ["index_put", [{"value": 0}, None, {"value": 2}], {}],
        ["index_put", [{"value": 0}, [], {"value": 2}], {}],
        ["index_copy", [{"value": 0}], {}],
        ["index_copy", [{"value": 0}, 2, 1, {"value": 2}], {}],
        ["index_copy", [{"value": 0}, 7, {"value": 1}, {"value": 2}], {}],
        ["index_copy", [{"value": 0}, 2, {"value": 2}, {"value": 1}], {}],
        ["neg", [{"value": 2}], {}],
    ],
)
def test_damaged_updates_are_errors(call: Any) -> None:
    program = update(1)
    with pytest.raises(OperationError, match="program: "):
        replace(program, calls=json.dumps([call]), returned=(3,))


def test_rows_with_gaps_have_no_kernel() -> None:
    transposed = (
        '[["transpose.int",[{"value":2},0,1],{}],["index_copy",[{"value":0},0,{"value":1},{"value":3}],{}]]'
    )
    program = OperatorProgram(
        "update",
        (Value((8, 5), "f32", "rows"), Value((2,), "i32", "rows"), Value((5, 2), "f32", "rows")),
        transposed,
        (4,),
        (Value((8, 5), "f32", "rows"),),
    )
    with pytest.raises(NotFusible, match="its rows have gaps"):
        rows_plan(program)


def test_runs_update_their_inputs_only() -> None:
    run = run_of(update(1))
    assert parse_run(run.text) == run
    assert (run.in_place, run.updated_inputs) == ({3: 0}, (0,))
    (first, _), (second, _) = run.steps
    wrong = replace(run, steps=((second, (0,)), (first, (3, 1, 2))))
    with pytest.raises(UsageError, match="a region updates what is no input of the run"):
        parse_run(wrong.text)


def test_the_operator_states_what_it_writes_to() -> None:
    program = update(2)
    operator, arguments = call_arguments(run_of(program), tensors(program))
    assert operator is not REGIONS
    assert operator._schema.arguments[0].alias_info.is_write
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(UsageError, match="the regions update 1 of 3 tensors, but got 0 and 3"):
        operator([], list(tensors(program)), arguments[-1])
