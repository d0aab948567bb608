"""A decision of autotune is kept once the cache knows all kernels of its graph, compiled or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildOutcome, Built, Cache
from dispatch_profiler.dispatches import State

pytest.importorskip("torch")

KEYS = ("a" * 64, "b" * 64)


def test_a_decision_without_a_kernel_that_lacked_memory_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is known in this process; with the kernel, another candidate may win in the next one."""
    from dispatch_profiler.boo.backends.graph_choice import Decision, _ChoicePlan

    cache, decision = Cache(tmp_path), Decision("alone", {"alone": 1.0, "fused": 1.2})
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path))
    cache.put(KEYS[0], Built(b"v", b"v", {"x": BuildOutcome(State.COMPILED)}))

    here = _ChoicePlan((), {}, KEYS, "choice-1")
    here.keep(decision)
    assert here.decision() == decision
    assert _ChoicePlan((), {}, KEYS, "choice-1").decision() is None

    cache.put(KEYS[1], Built(b"", b"", {"x": BuildOutcome(State.NOT_COMPILED, "killed by SIGABRT: no")}))
    here.keep(decision)
    assert _ChoicePlan((), {}, KEYS, "choice-1").decision() == decision
