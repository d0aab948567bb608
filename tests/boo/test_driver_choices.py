"""The driver that was measured to be faster is remembered, also by processes that start later."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.boo.kernels import DriverChoices
from dispatch_profiler.compiler import BuildOutcome, Built, Cache
from dispatch_profiler.dispatches import State

KEY = "ab" + "0" * 62


def test_a_choice_is_kept_beside_its_kernel(tmp_path: Path):
    Cache(tmp_path).put(KEY, Built(b"v", b"v", {"f": BuildOutcome(State.COMPILED)}))
    first = DriverChoices(Cache(tmp_path))
    first[f"{KEY}-2t"] = "local-task"
    first[f"{KEY}-1t"] = "local-sync"

    later = DriverChoices(Cache(tmp_path))
    assert (later.get(f"{KEY}-2t"), later.get(f"{KEY}-1t")) == ("local-task", "local-sync")
    assert later.get(f"{KEY}-4t") is None

    Cache(tmp_path).clear()
    assert DriverChoices(Cache(tmp_path)).get(f"{KEY}-2t") is None


def test_without_a_cache_a_process_remembers_it():
    choices = DriverChoices(None)
    choices[f"{KEY}-2t"] = "local-task"

    assert (dict(choices), len(choices)) == ({f"{KEY}-2t": "local-task"}, 1)
    del choices[f"{KEY}-2t"]
    assert choices.get(f"{KEY}-2t") is None
