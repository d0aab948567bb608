"""What a resumed run measures again: what is not complete, and what failed for reasons outside of the dispatch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_records import invented

from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.resume import Wanted

WANTED = Wanted(verify=True, profile=True, mode="batch")


@pytest.mark.parametrize(
    ("verdict", "reason", "is_complete"),
    [
        (Verdict.NOT_COMPILED, "no such tile", True),
        (Verdict.NOT_COMPILED, "killed by SIGABRT: LLVM ERROR: no", True),
        (Verdict.NOT_COMPILED, "out of memory", False),
        (Verdict.NOT_COMPILED, "failed to link executable: sh: 1: Cannot fork", False),
        (Verdict.CRASHED, "killed by SIGSEGV", True),
        (Verdict.CRASHED, "killed by SIGKILL (the system may have run out of memory)", False),
        (Verdict.FAILED, "3 of 4 elements differ", True),
        (Verdict.NOT_SUPPORTED, "", True),
    ],
)
def test_a_failure_is_complete_unless_its_cause_lay_outside(verdict: Verdict, reason: str, is_complete: bool):
    (sample,) = invented(1)
    found = replace(sample, verdict=verdict, reason=reason, measurement=None)
    assert WANTED.is_in(found) is is_complete
