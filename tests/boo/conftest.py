"""Kernels of these tests are compiled in their own process: a compiler process takes longer to start than most kernels
to compile; and each kernel is compiled once in a run. That compilers have processes of their own is tested in
tests/compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compiler_worker import kept_builds
from run_of_pytest import folder_of_session

from dispatch_profiler.boo.session import SESSION


@pytest.fixture(autouse=True)
def _compile_once(request: pytest.FixtureRequest, in_process: None) -> Iterator[None]:
    with kept_builds(folder_of_session(request.config) / "kernels"):
        yield


@pytest.fixture
def plans_of_this_test(shared_cache: None) -> Iterator[None]:
    """No plan of a convolution that another test made, whose kernels are in the cache of the run."""
    SESSION.clear("convolutions")
    yield
    SESSION.clear("convolutions")
