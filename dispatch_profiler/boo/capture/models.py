"""Loads models for commands. `FILE.py:NAME` or `MODULE:NAME` is a model, or a function or class that returns one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dispatch_profiler.boo.fusion.model_runs import arguments_of, unchanged
from dispatch_profiler.errors import (
    DispatchProfilerError,
    UsageError,
    described,
    did_you_mean,
    raise_interrupt,
    reason_of,
)
from dispatch_profiler.files.regular import nearest_file

_torch: Any = torch
_EXPECTED = "expected FILE.py:NAME or MODULE:NAME, such as resnet.py:make_model"
_RETURNS = "it must return a model, or a model and its inputs: a tensor, a tuple of arguments, or a dict"
#: Value of --dtype -> torch's name.
TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


@dataclass(frozen=True)
class ModelRequest:
    """The options for a model: its batch, its dtype and mode, and the shapes of random inputs, if any are given."""

    batch: int | None = None
    dtype: str | None = None
    training: bool = False
    shapes: Sequence[tuple[int, ...]] = field(default_factory=tuple)


def load_factory(text: str) -> Callable[..., Any]:
    """The function, class or model that `text` names. A file is executed; its folder is not searched for imports.

    Raises UsageError, also for errors of the file.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UsageError(f"{text[:200]!r} does not name a model", hint=_EXPECTED)
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except DispatchProfilerError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{place} cannot be imported: {reason_of(error)}{line_of(error)}",
            hint=_import_hint(place, error.name or ""),
        ) from error
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        hint = "call main() under `if __name__ == '__main__':`" if isinstance(error, SystemExit) else ""
        raise UsageError(
            f"{place} cannot be imported: {described(error)}{line_of(error)}", hint=hint
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        what = "has no" if factory is None else "has no model, function or class"
        raise UsageError(f"{place} {what} {name!r}", hint=did_you_mean(name, known) or _EXPECTED)
    return factory


def _import_hint(place: str, missing: str) -> str:
    """What to do if the import of `place` ends because there is no module `missing`."""
    if not place.endswith(".py"):
        return f"for a file, write {place.replace('.', '/')}.py:NAME; the current directory is not searched"
    module = missing.partition(".")[0]
    if any(Path(place).with_name(name).exists() for name in (module, f"{module}.py")):
        return "the folder of the file is not searched: add its absolute path to PYTHONPATH"
    return f"correct the name, or install the package that has {missing}"


def line_of(error: BaseException) -> str:
    """` (model.py:27)`, the last line of the user's code that `error` passed; empty if it passed only installed code."""
    places = sysconfig.get_paths()
    libraries = [places[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed = ("<", str(Path(__file__).parents[2]), *libraries)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(installed):
            path, here = Path(frame.filename), Path.cwd()
            return f" ({path.relative_to(here) if path.is_relative_to(here) else path}:{frame.lineno})"
    return ""


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path} is not a file", hint=nearest_file(path))
    # The prefix avoids names of installed modules.
    name = f"_captured_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def build_model(factory: Callable[..., Any], request: ModelRequest) -> tuple[Any, Any]:
    """A model and its inputs, as requested. `factory` may also be the model itself.

    Raises UsageError, also for errors of the factory.
    """
    is_model = isinstance(factory, _torch.nn.Module)
    takes_batch = request.batch is not None and not is_model and "batch" in _parameters(factory)
    made: Any = factory if is_model else _made(factory, {"batch": request.batch} if takes_batch else {})
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, _torch.nn.Module):
        raise UsageError(f"{_name(factory)}() returned {type(model).__name__}, not a model", hint=_RETURNS)
    inputs = _inputs(_name(factory), inputs, request.shapes)
    if request.batch is not None and not takes_batch:
        inputs = _with_batch(_name(factory), inputs, request.batch)
    if request.dtype is not None:
        dtype = getattr(_torch, TYPES[request.dtype])
        model = model.to(dtype)
        inputs = _mapped(inputs, lambda each: each.to(dtype) if each.is_floating_point() else each)
    return model.train(request.training), inputs


def _made(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        raise UsageError(
            f"{_name(factory)}() failed: {described(error)}{line_of(error)}",
            hint="it is called without arguments, or with batch=N if it has such a parameter",
        ) from error


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__name__", type(factory).__name__)


def _parameters(factory: Callable[..., Any]) -> Sequence[str]:
    try:
        return tuple(inspect.signature(factory).parameters)
    except (ValueError, TypeError):
        return ()


def _inputs(name: str, inputs: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    if shapes:
        generator = torch.Generator().manual_seed(0)
        return tuple(_torch.randn(shape, generator=generator) for shape in shapes)
    if inputs is None:
        raise UsageError(
            f"the model of {name} has no inputs",
            hint="give their shapes, such as --input=1x3x224x224, or return (model, inputs) from a function",
        )
    if not isinstance(inputs, (torch.Tensor, tuple, list, Mapping)):
        raise UsageError(
            f"{name}() returned a model with inputs of type {type(inputs).__name__}", hint=_RETURNS
        )
    return inputs


def eager_error(model: Any, inputs: Any) -> BaseException | None:
    """The error of the model in eager torch; None if it runs."""
    positional, named = arguments_of(inputs)
    try:
        with unchanged(model, inputs):
            model(*positional, **named)
    except (Exception, SystemExit) as error:  # a model may raise anything
        return error
    return None


def _with_batch(name: str, inputs: Any, batch: int) -> Any:
    """`inputs` with `batch` elements on the first axis: the first element of each tensor, repeated."""
    extents: set[int] = set()
    _mapped(inputs, lambda each: extents.add(each.shape[0] if each.ndim else 0))
    if len(extents) != 1 or 0 in extents:
        raise UsageError(
            f"--batch: the first axes of the inputs of {name}() differ, so they are not a batch",
            hint=f"give {name} a parameter `batch`",
        )
    return _mapped(inputs, lambda each: each[:1].repeat(batch, *[1] * (each.ndim - 1)))


def _mapped(inputs: Any, function: Callable[[Any], Any]) -> Any:
    return _torch.utils._pytree.tree_map_only(torch.Tensor, function, inputs)
