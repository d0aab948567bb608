"""Whose kernels are profiled, what speeds are relative to, and which weights are converted before they are timed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Limits
from dispatch_profiler.dispatches import Dispatch, DispatchEntry, OperationEntry
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import Conv2d, Distribution, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.providers.library_calls import (
    PROVIDERS,
    LibraryCall,
    check_installed,
    choose_reference,
    open_library,
    parse_providers,
    with_providers,
)
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.records.speedup import SpeedupsOfRuns
from dispatch_profiler.profiler.verification.inputs import draw

MATMUL, CONV = Matmul(4, 6, 8), Conv2d(1, 4, 4, 2, 2, 3, 3)
TILES = CpuTiles((64, 128), (8, 32, 4))
OTHER = CpuTiles((32, 64), (8, 32, 4))


def entry(operation, *configurations):
    dispatches = tuple(DispatchEntry(Dispatch(operation, each)) for each in configurations)
    return OperationEntry(operation, "null", "", dispatches)


def names(pairs):
    return [dispatch.dispatch.configuration.name for _, dispatch in pairs]


def pairs_of(*entries):
    return [(each, dispatch) for each in entries for dispatch in each.dispatches]


# -- names -----------------------------------------------------------------------------------------


def test_providers_are_a_comma_list():
    """In the order given."""
    assert parse_providers("iree") == ("iree",)
    assert parse_providers("torch, iree,numpy") == ("torch", "iree", "numpy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cublas", "--providers: unknown provider 'cublas'"),
        ("", "--providers: unknown provider ''"),
        ("iree,,torch", "--providers: unknown provider ''"),
        ("iree,numpy,iree", "--providers: 'iree' is given twice"),
    ],
)
def test_a_list_that_says_nothing_is_refused(text, message):
    """With the names that there are."""
    with pytest.raises(UsageError) as error:
        parse_providers(text)
    assert error.value.message == message
    assert "twice" in message or all(name in error.value.hint for name in PROVIDERS)


def test_a_near_miss_is_named():
    with pytest.raises(UsageError) as error:
        parse_providers("iree,numpi")
    assert error.value.hint.startswith("did you mean 'numpy'?")


def test_a_library_that_is_not_installed_is_named_with_its_pip_line(monkeypatch):
    """And IREE and what is there are not asked for."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    check_installed(["iree", "numpy"])
    with pytest.raises(MissingDependency, match="--providers: torch is not installed") as error:
        check_installed(["iree", "torch"])
    assert "python -m pip install torch, or remove torch from --providers" in error.value.hint
    assert error.value.exit_status == 2


# -- the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "providers", "chosen"),
    [
        (None, ("iree",), "default"),
        (None, ("iree", "numpy"), "numpy"),
        (None, ("torch", "iree", "numpy"), "torch"),
        ("default", ("iree", "torch"), "default"),
        ("torch", ("iree", "numpy", "torch"), "torch"),
        ("numpy", ("numpy",), "numpy"),
    ],
)
def test_the_reference_is_what_is_asked_for_or_the_first_library(asked, providers, chosen):
    assert choose_reference(asked, providers) == chosen


@pytest.mark.parametrize(
    ("asked", "providers", "message", "hint"),
    [
        ("torch", ("iree", "numpy"), "--reference=torch is not among", "--providers=iree,numpy,torch"),
        ("iree", ("iree", "numpy"), "--reference: unknown reference 'iree'", "default, numpy"),
        ("tourch", ("iree", "torch"), "--reference: unknown reference 'tourch'", "did you mean 'torch'?"),
    ],
)
def test_a_reference_that_is_not_measured_is_refused(asked, providers, message, hint):
    with pytest.raises(UsageError) as error:
        choose_reference(asked, providers)
    assert error.value.message.startswith(message) and hint in error.value.hint


# -- the order of the work -------------------------------------------------------------------------


def test_what_others_are_compared_with_comes_first_within_an_operation():
    """The default, the libraries, then everything in its order."""
    pairs = pairs_of(entry(MATMUL, TILES, Default(), OTHER), entry(CONV, Default()))
    assert names(with_providers(pairs, ("iree", "torch", "numpy"))) == [
        "tile_config_default", "torch_matmul", "numpy_matmul", TILES.name, OTHER.name,
        "tile_config_default", "torch_conv2d", "numpy_im2col",
    ]  # fmt: skip


def test_without_libraries_only_the_default_moves():
    """A tree has its default first anyway."""
    pairs = pairs_of(entry(MATMUL, Default(), TILES, OTHER))
    assert with_providers(pairs, ("iree",)) == pairs


def test_without_iree_there_are_only_libraries():
    """One call for each operation that is selected, whatever its configurations are."""
    pairs = pairs_of(entry(MATMUL, TILES, OTHER), entry(CONV, Default()))
    assert names(with_providers(pairs, ("numpy",))) == ["numpy_matmul", "numpy_im2col"]


def test_without_the_default_the_libraries_come_first():
    """They may be the reference."""
    pairs = pairs_of(entry(MATMUL, TILES, Default(4)))
    found = names(with_providers(pairs, ("iree", "numpy")))
    assert found == ["numpy_matmul", TILES.name, "tile_config_default_splitk4"]


def test_a_call_is_named_for_the_library_and_its_method():
    """And says so if there is none."""
    assert Dispatch(MATMUL, LibraryCall("numpy", "matmul")).name == f"{MATMUL.name}_numpy_matmul"
    assert LibraryCall("numpy", "matmul").invalid_reason(MATMUL, Limits()) is None
    assert LibraryCall("numpy").invalid_reason(CONV, Limits()) == "numpy does not support conv2d"


# -- speeds ----------------------------------------------------------------------------------------


def record(
    configuration, ms, *, provider="IREE Codegen", operation=MATMUL, verdict=Verdict.SUCCESS, limit=0.0
):
    measurement = None if ms is None else Measurement((ms,), 1)
    origin = Provenance("null", "null", "", 1)
    return Record(Dispatch(operation, configuration), origin, verdict, "", measurement, provider, limit)


def numpy(ms, **options):
    return record(LibraryCall("numpy", "matmul"), ms, provider="numpy", **options)


def speedup(*records, reference="default"):
    """That of the last record."""
    return list(SpeedupsOfRuns(reference, records).all())[-1][1]


def test_speeds_are_ratios_of_times():
    """Twice as fast is 2."""
    known = [record(Default(), 4.0), numpy(6.0)]
    found = speedup(*known, record(TILES, 2.0, limit=0.5), reference="numpy")
    assert (found.vs_default.value, found.vs_reference.value, found.of_limit) == (2.0, 3.0, 0.25)
    assert speedup(*known, reference="numpy").vs_reference.value == 1.0


def test_the_default_may_be_the_reference():
    assert speedup(record(Default(), 4.0), record(TILES, 8.0)).vs_reference.value == 0.5


def test_what_is_not_known_is_none():
    """No ratio to another operation, to a failure, or of what has no figure."""
    known = [
        record(Default(), 4.0, operation=CONV),
        numpy(1.0, verdict=Verdict.FAILED),
        record(Default(4), 1.0),
    ]
    found = speedup(*known, record(TILES, 2.0), reference="numpy")
    assert (found.vs_default, found.vs_reference, found.of_limit) == (None, None, None)
    assert speedup(record(Default(), 1.0), record(TILES, None)).vs_default is None


def test_a_clock_that_stood_still_is_no_baseline():
    assert speedup(record(Default(), 0.0), record(TILES, 2.0)).vs_default is None


def test_records_of_one_origin_have_one_library():
    """Another version of it is measured anew; IREE's version is of no interest to it."""
    one = Provenance("local-task", "llvm-cpu", "", 1, library="numpy 2.0")
    assert one.origin == replace(one, when="later").origin
    assert one.origin != replace(one, library="numpy 2.1").origin
    assert one.software == "numpy 2.0"
    assert replace(one, library="", iree="compiler 1").software == "compiler 1"


CONVOLUTION = Conv2d(1, 4, 4, 2, 3, 3, 3)
ROWS = [
    ("numpy", CONVOLUTION, True),
    ("numpy", replace(CONVOLUTION, mode="weight_backward"), False),
    ("numpy", Matmul(4, 6, 8), False),
    ("numpy", LayerNorm(3, 5), False),
    ("torch", CONVOLUTION, True),
    ("torch", replace(CONVOLUTION, mode="input_backward"), True),
    ("torch", replace(CONVOLUTION, mode="weight_backward"), False),
    ("torch", Matmul(4, 6, 8), False),
    ("torch", LayerNorm(3, 5), False),
    ("torch", LayerNorm(3, 5, type="bf16"), True),
]


def stored(handle: Any) -> tuple[int, list[int]]:
    """Bytes of an element, and strides in bytes in any order of axes: a view has those of its array."""
    if isinstance(handle, np.ndarray):
        return handle.itemsize, sorted(handle.strides)
    return handle.itemsize, sorted(stride * handle.itemsize for stride in handle.stride())


@pytest.mark.parametrize(("name", "operation", "is_ahead"), ROWS)
def test_what_is_converted_before_it_is_timed_is_declared(name: str, operation: Operation, is_ahead: bool):
    """Seen in the operands: those that were converted are stored in another order or type."""
    pytest.importorskip(name)
    library = open_library(name, "local-sync", 1)
    inputs = draw(operation, Distribution.REALS, 1)
    prepared = library.put(operation, inputs).handles[: len(inputs)]

    assert library.converts_weights_ahead(operation) is is_ahead
    assert ([stored(each) for each in prepared] != [stored(each) for each in inputs]) is is_ahead
