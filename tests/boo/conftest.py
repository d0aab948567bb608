"""Kernels of these tests are compiled in their own process: a compiler process takes longer to start than most kernels
to compile. That compilers have processes of their own is tested in tests/compiler."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compile_in_this_process(in_process: None) -> None:
    pass
