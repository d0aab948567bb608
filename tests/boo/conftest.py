"""Kernels of these tests are compiled in their own process: a compiler process takes longer to start than most kernels
to compile. That compilers have processes of their own is tested in tests/compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch_profiler.boo.session import SESSION


@pytest.fixture(autouse=True)
def _compile_in_this_process(in_process: None) -> None:
    pass


@pytest.fixture
def plans_of_this_test(shared_cache: None) -> Iterator[None]:
    """No plan of a convolution that another test made, whose kernels are in the cache of the run."""
    SESSION.clear("convolutions")
    yield
    SESSION.clear("convolutions")
