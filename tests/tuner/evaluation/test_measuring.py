"""Operations have devices of their own; the work of a device that fails moves to the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import pytest
from evaluator_bench import GONE, Bench
from search_samples import TILES

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.tuner.evaluation import measuring
from dispatch_profiler.tuner.evaluation.measuring import Devices, Measured

OPTIONS = EvaluatorOptions("")
TWO = ("gpu://0", "gpu://1")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(measuring, "Evaluator", made.evaluator)
    return made


def groups(count: int) -> dict[int, list[Candidate]]:
    """Four candidates of each of `count` operations."""
    return {
        at: [Candidate(Dispatch(Matmul(16, 32, 8 + at), each), "null") for each in TILES]
        for at in range(count)
    }


def names(found: Iterable[Measured], at: int) -> list[str]:
    return [each.record.dispatch.name for each in found if each.at == at]


def wanted(given: dict[int, list[Candidate]], at: int) -> list[str]:
    return [each.dispatch.name for each in given[at]]


def homes(found: Sequence[Measured]) -> dict[int, set[str]]:
    return {
        at: {each.record.provenance.device for each in found if each.at == at} for at in {e.at for e in found}
    }


@pytest.mark.parametrize("devices", [TWO[:1], TWO, ("gpu://0", "gpu://1", "gpu://2")])
def test_every_candidate_has_a_record_in_the_order_of_its_operation(bench, devices):
    given = groups(5)
    with Devices(OPTIONS, devices) as opened:
        opened.check()
        found = list(opened.records(given))
        again = list(opened.records(given))
    for measured in (found, again):
        assert all(names(measured, at) == wanted(given, at) for at in given)
        assert all(each.seconds >= 0.0 for each in measured)
    assert homes(found) == homes(again) and all(len(each) == 1 for each in homes(found).values())
    counts = [list(homes(found).values()).count({device}) for device in devices]
    assert max(counts) - min(counts) <= 1


def test_the_work_of_a_device_that_fails_moves_to_another(bench):
    """The kernel that broke it has its record; the others of the device have none, and are asked for again."""
    bench.breaks_at = {"gpu://1": 2}
    given = groups(4)
    with Devices(OPTIONS, TWO) as opened:
        first = list(opened.records(given))
        assert opened.failures == {"gpu://1": GONE}
        known = {each.record.dispatch.name for each in first}
        left = {
            at: [each for each in group if each.dispatch.name not in known] for at, group in given.items()
        }
        second = list(opened.records({at: group for at, group in left.items() if group}))

    crashed = [each.record for each in first if each.record.verdict is Verdict.CRASHED]
    assert [each.reason for each in crashed] == ["killed by SIGBUS"]
    assert len(first) == 8 + 2 and len(second) == 6
    assert {each.record.provenance.device for each in second} == {"gpu://0"}
    assert all(sorted(names([*first, *second], at)) == sorted(wanted(given, at)) for at in given)


def test_without_a_device_there_is_an_error(bench):
    """Whether they fail one after the other or do not open at all."""
    bench.breaks_at = {"gpu://0": 1, "gpu://1": 1}
    with Devices(OPTIONS, TWO) as opened, pytest.raises(TargetError, match=GONE):
        list(opened.records(groups(2)))
    with Devices(OPTIONS, TWO) as opened, pytest.raises(TargetError, match=GONE):
        opened.check()


def test_a_device_that_does_not_open_is_left_out(bench):
    bench.broken = {"gpu://0"}
    given = groups(2)
    with Devices(OPTIONS, TWO) as opened:
        opened.check()
        assert opened.failures == {"gpu://0": GONE}
        found = list(opened.records(given))
    assert {each.record.provenance.device for each in found} == {"gpu://1"} and len(found) == 8


def test_who_stops_reading_ends_all_devices(bench):
    """Their workers are killed, so that nothing is measured any more."""

    with Devices(OPTIONS, TWO) as opened, contextlib.closing(opened.records(groups(4))) as records:
        next(records)
    assert sorted(bench.killed) == list(TWO)


@pytest.mark.parametrize("devices", [("local-task", "local-sync"), ("null://0", "null://0")])
def test_the_same_hardware_twice_is_an_error(devices):
    with pytest.raises(UsageError, match="are the same hardware"):
        Devices(OPTIONS, devices)
