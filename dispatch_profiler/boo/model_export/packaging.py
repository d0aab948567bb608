"""A fused model -> a package of AOTInductor, which contains the kernels."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.model_export.fused_model import FusedModel
from dispatch_profiler.boo.model_export.operators import DefinedOperators
from dispatch_profiler.boo.model_export.traced_model import ReplacedModel, TracedModel
from dispatch_profiler.boo.rounds import Rounds, in_rounds, relative_times
from dispatch_profiler.errors import ToolError, reason_of

_torch: Any = torch
#: The name of the library of kernels, for the linker.
_LIBRARY = "dispatch_profiler_package"
#: Where compilers look for libraries besides their own folders.
_SEARCH_PATH = "LIBRARY_PATH"


def write_package(fused: FusedModel, traced: TracedModel, path: Path, options: Mapping[str, Any]) -> None:
    """Compile a fused model by AOTInductor, and write the package to `path`. `options` are inductor's.

    Raises ToolError, with the errors of AOTInductor.
    """
    fused.library.archive(_LIBRARY, fused.operators, fused.constants)
    with DefinedOperators(fused.operators) as targets:
        fused.call_operators(targets)
        linked = {
            "aot_inductor.custom_ops_to_c_shims": {
                target: [each.declaration] for target, each in zip(targets, fused.operators, strict=True)
            },
            "aot_inductor.custom_op_libs": [_LIBRARY],
        }
        with _searched(fused.library.folder):
            _compile(ReplacedModel(fused.module, traced), traced, path, {**options, **linked})


def write_plain_package(model: Any, traced: TracedModel, path: Path, options: Mapping[str, Any]) -> None:
    """Compile `model` by AOTInductor alone. Raises ToolError like `write_package`."""
    _compile(model, traced, path, options)


def _compile(model: Any, traced: TracedModel, path: Path, options: Mapping[str, Any]) -> None:
    compile_program: Any = _torch._inductor.aoti_compile_and_package
    with _torch.no_grad():
        try:
            program = torch.export.export(model.eval(), *traced.inputs, strict=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of torch's own calls
                compile_program(program, package_path=str(path), inductor_configs=dict(options))
        except Exception as error:  # whatever inductor and the C++ compiler raise
            raise ToolError(f"AOTInductor cannot compile the model: {reason_of(error)[:500]}") from error


@contextlib.contextmanager
def _searched(folder: Path) -> Iterator[None]:
    """Let the linker that AOTInductor starts look for libraries in `folder`: it has no option for that."""
    before = os.environ.get(_SEARCH_PATH)
    os.environ[_SEARCH_PATH] = str(folder) if before is None else f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEARCH_PATH]
        else:
            os.environ[_SEARCH_PATH] = before


def relative_time(
    ours: Callable[..., Any],
    plain: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    measure: Rounds = in_rounds,
) -> float:
    """The time of a call of `ours` relative to a call of `plain`, from rounds in which both are called."""
    positional, named = arguments
    calls = [partial(each, *positional, **named) for each in (plain, ours)]
    with _torch.no_grad():
        _, ratio = relative_times(measure(calls))
    return ratio


def loaded(path: Path) -> Callable[..., Any]:
    """The function that a package is, in this process."""
    function: Callable[..., Any] = _torch._inductor.aoti_load_package(str(path))
    return function
