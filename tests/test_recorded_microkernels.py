"""What is recorded of microkernels, and how the rules are judged on it; nothing is measured here."""

from __future__ import annotations

import gzip
import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from script_helpers import load_script

from dispatch_profiler.configurations import WinogradMicrokernel
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.targets import Target, cpu, parse_target, ranked_microkernels, ranked_winograd

recording = load_script("scripts/record_microkernels.py")
judging = load_script("benchmarks/first_choice.py")

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A CPU with AVX-512."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(("avx", "avx512f"))))
    return parse_target("llvm-cpu")


def test_a_seed_draws_the_same_operations_of_every_family():
    first, again = (list(islice(recording.drawn_operations(3, "f32"), 22)) for _ in range(2))
    assert first == again and len(set(first)) == 22
    assert list(islice(recording.drawn_operations(4, "f32"), 22)) != first
    convolutions = [each for each in first if isinstance(each, Conv2d)]
    assert any(isinstance(each, Matmul) for each in first)
    assert {each.r for each in convolutions} >= {1, 3}
    assert any(each.groups == each.c for each in convolutions)
    assert any(each.groups not in (1, each.c) for each in convolutions)


def test_valid_kernels_are_recorded_with_the_rules_first_choices(target: Target):
    for operation in (CONVOLUTION, Matmul(64, 256, 128, rhs_layout="n")):
        chosen = recording.chosen_configurations(operation, target, [2, 16], 20, np.random.default_rng(0))
        assert len(set(chosen)) == len(chosen)
        assert all(each.invalid_reason(operation, target.limits) is None for each in chosen)
        for threads in (2, 16):
            assert ranked_microkernels(operation, target, threads)[0] in chosen
            assert {each for _, each in ranked_winograd(operation, target, threads)[:1]} <= set(chosen)


def recorded(
    tmp_path: Path, operation: Conv2d, times: list[tuple[object, float]], name: str = "one"
) -> object:
    line = {
        "operation": operation.to_dict(),
        "cpu": "a CPU",
        "threads": 2,
        "times": [[each.to_dict(), ms] for each, ms in times],  # type: ignore[attr-defined]
    }
    path = tmp_path / f"{name}.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(line) + "\n").encode()))
    (found,) = judging.read(path)
    return found


def test_a_choice_is_judged_by_the_fastest_that_was_recorded(tmp_path: Path, target: Target):
    ranked = ranked_microkernels(CONVOLUTION, target, 2)[:6]
    found = recorded(tmp_path, CONVOLUTION, [(each, 1.0 + at) for at, each in enumerate(ranked)])
    assert found.best == ranked[:1]
    assert len(found.four) == 4 and found.four[0] == ranked[0]
    assert found.ratio(found.best) == 1.0

    reverse = recorded(tmp_path, CONVOLUTION, [(each, 6.0 - at) for at, each in enumerate(ranked)])
    assert reverse.ratio(reverse.best) == 6.0
    assert reverse.ratio(reverse.four) == 6.0 - max(map(ranked.index, reverse.four)) < 6.0


def test_the_choices_of_both_kinds_are_among_the_four(tmp_path: Path, target: Target):
    direct = ranked_microkernels(CONVOLUTION, target, 2)[:6]
    winograd = [each for _, each in ranked_winograd(CONVOLUTION, target, 2)[:5]]
    found = recorded(tmp_path, CONVOLUTION, [(each, 1.0) for each in (*direct, *winograd)])
    assert len(set(found.four)) == 4
    assert {direct[0], winograd[0]} <= set(found.four)
    assert isinstance(found.best[0], WinogradMicrokernel)  # 2.25 or 4 times fewer products


def test_the_nearest_entry_is_that_of_the_most_similar_operation(tmp_path: Path, target: Target):
    def of(size: int, channels: int, name: str) -> object:
        operation = Conv2d(1, size, size, channels, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
        ranked = ranked_microkernels(operation, target, 2)
        times = [(each, 1.0 + abs(each.registers[2] - (32 if name == "near" else 64))) for each in ranked]
        return recorded(tmp_path, operation, sorted(times, key=lambda pair: pair[1]), name)

    this, near, far = of(28, 64, "this"), of(28, 72, "near"), of(7, 512, "far")
    nearest = judging.nearest(this, [this, near, far])
    assert nearest in this.times
    assert nearest.registers[2] == 32
    assert math.isclose(this.ratio([nearest]), this.times[nearest])
