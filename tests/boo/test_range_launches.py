"""Launches use the library's entries for several numbers of rows: which one depends on the rows of each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from dispatch_profiler import misses
from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.driver.launch import get_batch_launch
from dispatch_profiler.boo.fusion.execute import calls
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.kernels import any_batch_keys, prepare_batch_kernels
from dispatch_profiler.boo.kernels.uses import USES, KernelOrigin
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.configurations import RowsMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.entry import SizeTime
from dispatch_profiler.operations import Epilogue, Matmul
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import LARGEST_BATCH, parse_target, rows_microkernel

TARGET = parse_target("llvm-cpu")
LINEAR = Matmul(1, 70, 40, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu"))
#: Rows up to 4 and up to 9 share a layout of the weight; those up to 40 have another.
BUCKETS = {
    SizeRange("m", 1, 4): RowsMicrokernel((2, 32), ((4, 1, 32),)),
    SizeRange("m", 5, 9): RowsMicrokernel((3, 32), ((9, 2, 96),)),
    SizeRange("m", 10, 40): RowsMicrokernel((2, 16), ((20, 1, 16), (40, 2, 80))),
}


def entry(sizes: SizeRange, kernel: RowsMicrokernel) -> Entry:
    one = Estimate(2.0, 1.9, 2.1)
    where = Provenance(
        "local-task",
        TARGET.name,
        f"compiler {compiler_for(TARGET).revision}, runtime 3",
        7,
        machine=this_machine("local-task"),
    )
    measured = (SizeTime(sizes.least, 1.0, 2.0),)
    return Entry(Dispatch(sizes.largest_of(LINEAR), kernel), one, one, where, sizes, measured)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, shared_builds: Path, tmp_path: Path) -> Iterator[Path]:
    """A library with the buckets, which launches use."""
    if rows_microkernel(replace(LINEAR, m=LARGEST_BATCH), TARGET) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    torch.manual_seed(0)
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", str(tmp_path / "tuned"))
    Library(entry(*each) for each in BUCKETS.items()).save(tmp_path / "tuned")
    SESSION.clear("batch_kernels", "batch_launches", "batch_rules")
    yield tmp_path / "tuned"
    SESSION.clear("batch_kernels", "batch_launches", "batch_rules")


def launch(rows: int) -> tuple[torch.Tensor, np.ndarray]:
    """What a launch returns, and what numpy computes in float64."""
    operation = replace(LINEAR, m=rows)
    x, weight, bias = (torch.randn(each.shape) for each in operation.operands)
    made = get_batch_launch(RegionSignature(operation))
    result = made.launchable(x.reshape(-1), *made.pack(weight), bias).reshape(rows, LINEAR.n)
    sums = x.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    halves = np.array([torch.erf(torch.tensor(each / 2**0.5)).item() for each in sums.reshape(-1)])
    return result, sums * (1.0 + halves.reshape(sums.shape)) / 2.0


def test_results_are_right_at_the_borders_of_all_buckets():
    used = {}
    for rows in (1, 4, 5, 9, 10, 20, 21, 40):
        result, expected = launch(rows)
        assert np.abs(result.numpy() - expected).max() <= 4e-6 * np.abs(expected).max()
        kernel = get_batch_launch(RegionSignature(replace(LINEAR, m=rows))).kernel
        used[rows] = kernel.function.partition("_f32")[0]
    of_buckets = [f"matmul_{most}x70x40" for most in (4, 4, 9, 9, 40, 40, 40, 40)]
    assert list(used.values()) == of_buckets


def test_buckets_with_one_layout_share_the_packed_weight():
    recipes = {rows: get_batch_launch(RegionSignature(replace(LINEAR, m=rows))).recipe for rows in (3, 7, 15)}
    assert recipes[3] == recipes[7]
    assert recipes[3] != recipes[15]


def test_all_buckets_are_prepared_before_the_first_call(monkeypatch: pytest.MonkeyPatch):
    assert prepare_batch_kernels([replace(LINEAR, m=7)], 1) == {}
    assert len(any_batch_keys([replace(LINEAR, m=7)])) == len(BUCKETS)
    monkeypatch.setattr("dispatch_profiler.boo.kernels.any_batch.find_kernels", None)
    for rows in (2, 7, 30):
        get_batch_launch(RegionSignature(replace(LINEAR, m=rows)))


def test_uses_name_the_range_and_other_sizes_are_missed():
    prepare_batch_kernels([replace(LINEAR, m=7)], 1)
    use = USES.of(replace(LINEAR, m=7), packs_weight=True)
    assert use is not None
    assert (use.origin, use.text, use.is_missed) == (KernelOrigin.SIZES, "range: m=5:9", False)


def test_a_size_outside_has_the_kernel_of_the_rule():
    prepare_batch_kernels([replace(LINEAR, m=41)], 1)
    use = USES.of(replace(LINEAR, m=41), packs_weight=True)
    assert use is not None
    assert (use.origin, use.is_missed) == (KernelOrigin.PREDICTED, True)
    assert "no entry for several sizes with this one" in use.reason
    kernel = get_batch_launch(RegionSignature(replace(LINEAR, m=41))).kernel
    assert kernel.function.startswith(f"matmul_{LARGEST_BATCH}x")


def test_an_entry_that_does_not_compile_leaves_the_rule(library: Path):
    """Its divisions end before the largest size, so that it is invalid."""
    short = replace(BUCKETS[SizeRange("m", 5, 9)], divisions=((8, 1, 32),))
    Library([entry(SizeRange("m", 5, 9), short)]).save(library)
    prepare_batch_kernels([replace(LINEAR, m=7)], 1)
    use = USES.of(replace(LINEAR, m=7), packs_weight=True)
    assert use is not None
    assert use.origin is KernelOrigin.PREDICTED
    assert "the library's entry is not used" in use.reason


# -- compiled models -------------------------------------------------------------------------------


@pytest.fixture
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    SESSION.clear("uses", "batch_regions")
    yield
    torch._dynamo.reset()


def linear() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(LINEAR.k, LINEAR.n), torch.nn.GELU()).eval()


OPTIONS = {"fusion_schema": BOO_FUSIONS_WITH_MATRIX_PRODUCTS, "autotune": False, "freeze": True}


def test_a_compiled_model_uses_the_bucket_of_each_call(fresh_graphs: None, monkeypatch: pytest.MonkeyPatch):
    model = linear()
    fast = torch.compile(model, backend=backend(**OPTIONS), dynamic=True)
    used = []
    launch_of = calls.get_batch_launch
    monkeypatch.setattr(
        calls, "get_batch_launch", lambda signature: used.append(launch_of(signature)) or used[-1]
    )
    with torch.no_grad():
        for rows in (7, 4, 5, 9, 10, 40, 41):
            x = torch.randn(rows, LINEAR.k)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    largest = [each.kernel.function.partition("x")[0].rpartition("_")[2] for each in used]
    assert largest == ["9", "4", "9", "9", "40", "40", str(LARGEST_BATCH)]


def test_explain_names_the_range_and_misses_only_sizes_outside(fresh_graphs: None):
    for rows, origin, missed in ((7, "range: m=5:9", 0), (50, "predicted", 1)):
        SESSION.clear("uses")
        torch._dynamo.reset()
        x = torch.randn(rows, LINEAR.k)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            found = explain(linear(), x, backend=backend(**OPTIONS), measure=None)
        (region,) = (each for each in found.regions if each.is_fused)
        assert region.use is not None
        assert region.use.text.startswith(origin)
        assert "tile_config" in region.configuration
        assert len(misses().operations) == missed
