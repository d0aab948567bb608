"""Kernels of these tests are compiled in their own process: a compiler process takes longer to start than most kernels
to compile. Those of tests/boo/ops have processes, as kernels of users do."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compile_in_this_process(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name != "ops":
        request.getfixturevalue("in_process")
