"""Jobs for a compiler, and trees that are not compiled yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sweep_helpers import SMALL

from dispatch_profiler.compiler import BuildRequest
from dispatch_profiler.configurations import Configuration
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import parse_target

MakeRequest = Callable[..., BuildRequest]


@pytest.fixture(scope="session")
def make_request() -> MakeRequest:
    """`make_request(operation, [configuration, ...], repeat=2)` for this CPU."""
    target = parse_target("llvm-cpu")

    def make(operation: Operation, configurations: Sequence[Configuration], repeat: int = 2) -> BuildRequest:
        dispatches = tuple(Dispatch(operation, c) for c in configurations)
        flags = (*target.compile_flags, *configurations[0].flags)
        return BuildRequest(render_module(operation, dispatches), dispatches, flags, repeat)

    return make


@pytest.fixture
def generate(run):
    """`generate("tree", ...)`: a tree that is not compiled; its folder."""

    def make(folder: str, *arguments: str, target: str = "null") -> Path:
        run("generator", f"--generated-dir={folder}", f"--target={target}", *(arguments or SMALL)).checked()
        return Path(folder).absolute()

    return make
