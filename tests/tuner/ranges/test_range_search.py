"""The search for the kernels of a range, with invented times: which kernels become entries for which sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Configuration, RowsMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import CompilerError, OperationError, UsageError
from dispatch_profiler.library import KeepRule
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import LARGEST_BATCH, Target, batch_space, of_any_batch, parse_target
from dispatch_profiler.tuner.ranges.batch_bench import RangeKernel
from dispatch_profiler.tuner.ranges.batch_worker import BatchKernel
from dispatch_profiler.tuner.ranges.range_search import RangeOptions, RangeResult, search_range
from tests.library.library_samples import HERE

LINEAR = Matmul(5, 3072, 768, rhs_layout="n")
IMAGES = Conv2d(1, 14, 14, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
SIZES = SizeRange("m", 1, 4096)
#: A configuration and a size -> seconds.
Seconds = Callable[[Configuration, int], float]


class InventedBench:
    """Times kernels by a formula; `wrong` are never right."""

    def __init__(self, seconds: Seconds, wrong: Callable[[Configuration], bool] = lambda _: False) -> None:
        self._seconds = seconds
        self._wrong = wrong
        self.failures: dict[str, str] = {}
        self.built: list[Dispatch] = []

    def build(self, dispatches: Sequence[Dispatch]) -> list[RangeKernel]:
        self.built += dispatches
        return [
            RangeKernel(each, BatchKernel(each.name, "", (), str(_block(each.configuration))), "key", ())
            for each in dispatches
        ]

    def seconds_at(
        self, operation: Operation, kernels: Sequence[RangeKernel], rounds: int
    ) -> dict[str, list[float]]:
        found = {}
        for each in kernels:
            if self._wrong(each.dispatch.configuration):
                self.failures[each.name] = "1 of 8 elements are wrong"
            else:
                size = operation.operands[0].shape[0]
                base = self._seconds(each.dispatch.configuration, size)
                found[each.name] = [base * (1.0 + 0.001 * (at % 3)) for at in range(rounds)]
        return found

    def provenance(self, kernel: RangeKernel) -> object:
        return HERE


def _block(configuration: Configuration) -> int:
    return configuration.registers[-1]  # type: ignore[attr-defined]


@pytest.fixture
def target(host_has: Callable[..., None]) -> Target:
    host_has("avx", "avx512f")
    return parse_target("llvm-cpu")


def searched(target: Target, bench: InventedBench, **options: object) -> RangeResult:
    return search_range(LINEAR, SIZES, target, bench, RangeOptions(**options))  # type: ignore[arg-type]


def ruled(target: Target) -> RowsMicrokernel:
    space = batch_space(replace(LINEAR, m=LARGEST_BATCH), target)
    assert space is not None
    first = space.first[0]
    assert isinstance(first, RowsMicrokernel)
    return first


def test_nothing_faster_than_the_rule_is_no_entry(target: Target):
    first = ruled(target)
    result = searched(target, InventedBench(lambda each, size: 1.0 if each == first else 1.1))
    assert result.entries == ()
    (bucket,) = result.buckets
    assert bucket.sizes == SIZES
    assert "nothing is faster than the kernel of the rule" in bucket.reason


def test_a_kernel_that_is_faster_everywhere_is_one_entry(target: Target):
    bench = InventedBench(lambda each, size: size * (1.0 if _block(each) == 48 else 1.2))
    (found,) = searched(target, bench).entries
    assert (found.sizes, _block(found.dispatch.configuration)) == (SIZES, 48)
    assert found.operation == replace(LINEAR, m=4096)
    assert found.speedup.value == pytest.approx(1.2)
    assert found.speedup.low > 1.0
    assert [each.size for each in found.measured] == list(SIZES.samples(16))
    assert found.measured[-1].untuned == pytest.approx(1.2 * found.measured[-1].milliseconds, rel=1e-3)


def test_its_speed_is_the_geometric_mean_over_all_sizes(target: Target):
    bench = InventedBench(lambda each, size: size * (1.0 if _block(each) == 48 else 1.2))
    (found,) = searched(target, bench).entries
    flops = 2 * 3072 * 768  # of a row, which takes a second
    assert found.gflops.value == pytest.approx(flops / 1e9, rel=2e-3)


def test_kernels_that_win_at_different_sizes_are_entries_with_borders_between_them(target: Target):
    def seconds(each: Configuration, size: int) -> float:
        is_low = _block(each) == 32
        return 1.0 if is_low == (size <= 100) else 1.5

    low, *others = searched(target, InventedBench(seconds)).buckets
    (high,) = others
    assert (low.sizes.least, high.sizes.most) == (1, 4096)
    assert low.sizes.most + 1 == high.sizes.least
    assert 60 < low.sizes.most < 170
    assert low.entry is not None
    assert _block(low.entry.dispatch.configuration) == 32
    assert low.entry.operation == replace(LINEAR, m=low.sizes.most)
    assert max(each.size for each in low.entry.measured) <= low.sizes.most


def test_the_fastest_divisions_of_each_size_are_joined(target: Target):
    """The rule's tiles with its second choice of divisions for few rows, and its first for many."""
    space = batch_space(replace(LINEAR, m=LARGEST_BATCH), target)
    first = ruled(target)
    assert space is not None
    second = next(each for each in space.further([first]) if each != first)
    assert isinstance(second, RowsMicrokernel)

    def seconds(each: Configuration, size: int) -> float:
        assert isinstance(each, RowsMicrokernel)
        if (each.registers, each.unroll) != (first.registers, first.unroll):
            return 2.0
        wanted = second if size < 100 else first
        return 1.0 if _division(each, size) == _division(wanted, size) else 1.3

    (found,) = searched(target, InventedBench(seconds)).entries
    joined = found.dispatch.configuration
    assert isinstance(joined, RowsMicrokernel)
    assert {size: _division(joined, size) for size in (1, 5, 4096)} == {
        1: _division(second, 1), 5: _division(second, 5), 4096: _division(first, 4096),
    }  # fmt: skip


def _division(found: RowsMicrokernel, rows: int) -> tuple[int, ...]:
    return next(tuple(how) for up_to, *how in found.divisions if rows <= up_to)


def test_a_wrong_kernel_is_left_out(target: Target):
    bench = InventedBench(
        lambda each, size: 1.0 if _block(each) == 48 else 1.2, lambda each: _block(each) == 48
    )
    assert searched(target, bench).entries == ()
    assert bench.failures


def test_a_wrong_kernel_of_the_rule_is_an_error(target: Target):
    first = ruled(target)
    with pytest.raises(CompilerError, match="which launches use without an entry: 1 of 8 elements are wrong"):
        searched(target, InventedBench(lambda each, size: 1.0, lambda each: each == first))


def test_a_gain_below_the_threshold_is_not_kept(target: Target):
    bench = InventedBench(lambda each, size: 1.0 if _block(each) == 48 else 1.15)
    (bucket,) = searched(target, bench, rule=KeepRule(0.2)).buckets
    assert bucket.entry is None
    assert bucket.speedup is not None
    assert bucket.speedup.value == pytest.approx(1.15)


def test_what_is_not_certainly_faster_is_not_kept(target: Target):
    """In one of 15 rounds it is far slower: the 95 % interval of the speedup is above 1, the 99.9 % interval is not."""

    class Varying(InventedBench):
        def seconds_at(
            self, operation: Operation, kernels: Sequence[RangeKernel], rounds: int
        ) -> dict[str, list[float]]:
            found = super().seconds_at(operation, kernels, rounds)
            is_final = rounds == 15
            return {
                name: [
                    each * (1.3 if is_final and at < 1 and "x48_" in name else 1.0)
                    for at, each in enumerate(times)
                ]
                for name, times in found.items()
            }

    bench = Varying(lambda each, size: 1.0 if _block(each) == 48 else 1.1)
    (bucket,) = searched(target, bench).buckets
    assert bucket.speedup is not None
    assert bucket.speedup.low > 1.0
    assert bucket.entry is None


def test_the_number_of_kernels_is_limited(target: Target):
    bench = InventedBench(lambda each, size: 1.0)
    assert searched(target, bench, evaluations=3).evaluated == 3
    assert len(bench.built) == 3


def test_images_have_buckets_too(target: Target):
    space = batch_space(of_any_batch(IMAGES), target)  # type: ignore[arg-type]
    assert space is not None
    best = space.first[1]
    bench = InventedBench(lambda each, size: size * (1.0 if each == best else 1.4))
    result = search_range(IMAGES, SizeRange("n", 1, 64), target, bench, RangeOptions())  # type: ignore[arg-type]
    (found,) = result.entries
    assert found.dispatch == Dispatch(replace(IMAGES, n=64), best)


def test_other_operations_and_targets_are_errors(target: Target):
    bench = InventedBench(lambda each, size: 1.0)
    with pytest.raises(OperationError, match="not for several n"):
        search_range(LINEAR, SizeRange("n", 1, 4), target, bench, RangeOptions())  # type: ignore[arg-type]
    cuda = parse_target("cuda:sm_90")
    with pytest.raises(UsageError, match="no kernel for cuda:sm_90 is for several sizes"):
        search_range(LINEAR, SIZES, cuda, bench, RangeOptions())  # type: ignore[arg-type]
