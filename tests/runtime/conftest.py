"""What tests on a GPU share: they are skipped with a reason where there is none.

The machine with the GPU may have no compiler: `pytest --vmfbs=DIR tests/runtime` on a machine that has
one writes what these tests load there, and on the other reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_helpers import need_gpu

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import parse_target

Build = Callable[..., tuple[str, Path]]


@pytest.fixture
def for_cuda(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    """`for_cuda(operation, target=, repeat=, source=)` -> function and vmfb, which `need_gpu` is for."""
    kept = request.config.getoption("--vmfbs")
    # Tests have a working directory of their own.
    folder = request.config.invocation_params.dir / kept if kept else tmp_path
    folder.mkdir(parents=True, exist_ok=True)

    def build(
        operation: Operation, target: str = "cuda:sm_80", repeat: int = 1, source: str = ""
    ) -> tuple[str, Path]:
        if not kept:
            need_gpu()
        dispatch = Dispatch(operation, Default())
        text = source or render_module(operation, [dispatch])
        path = folder / f"{sha256(f'{target} {repeat} {text}'.encode())[:16]}.vmfb"
        if not path.exists():
            path.write_bytes(_compiled(text, dispatch, target, repeat))
        return dispatch.name, path

    return build


def _compiled(text: str, dispatch: Dispatch, target: str, repeat: int) -> bytes:
    pytest.importorskip("iree.compiler", reason="no compiler here: give what it made with --vmfbs=DIR")
    from dispatch_profiler.compiler import BuildRequest, IreeCompiler

    flags = parse_target(target).compile_flags
    return IreeCompiler().build(BuildRequest(text, (dispatch,), flags, repeat)).profile
