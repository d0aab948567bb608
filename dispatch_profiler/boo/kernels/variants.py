"""The ways to compile an operation for launches, the fastest known first: tuned, in its fastest form, by default."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

from dispatch_profiler.boo.environment import LOGGER, TUNING_VARIABLE
from dispatch_profiler.compiler import Compiler
from dispatch_profiler.compiler.cuda.triton import triton_version
from dispatch_profiler.configurations import Default, KernelSource
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.library import LIBRARY_FILE, Library, library_file
from dispatch_profiler.library.shipped import find_library, shipped_for, shipped_name
from dispatch_profiler.library.tuned import TunedConfigurations, prove_hint
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, fastest_form, packed_microkernel

#: The code generator for CPUs.
_CPU = "llvm-cpu"
_SPEC_SUFFIX = ".mlir"
_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class Variant:
    """A dispatch, and compiler flags besides the target's and the configuration's."""

    dispatch: Dispatch
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchTuning:
    """Tuned configurations for one target: a library's, or flags that pass a tuning spec to the compiler."""

    configurations: TunedConfigurations | None = None
    flags: tuple[str, ...] = ()

    @classmethod
    def read(cls, source: str | None, target: Target, compiler: Compiler) -> LaunchTuning:
        """Read a library (a folder or a shipped name) or a tuning spec. Raises UsageError if that fails.

        None means the shipped library for `target`, empty means nothing.
        """
        path = shipped_for(target) if source is None else Path(source).expanduser()
        if path is None or source == "":
            return cls()
        if path.suffix == _SPEC_SUFFIX and path.is_file():
            return cls(flags=(f"{_SPEC_FLAG}={path.absolute()}",))
        try:
            file = library_file(find_library(path)).absolute()
            return _of_library(file, _version(file), target, compiler.revision)
        except UsageError as error:
            raise UsageError(f"{TUNING_VARIABLE}: {error}", hint=error.hint) from error

    def variants(
        self, operation: Operation, target: Target, *, packs_weight: bool = False
    ) -> Iterator[Variant]:
        """The variants of `operation`, without duplicates, each made when it is needed: most kernels use the first.

        The last one is the compiler's default.

        With `packs_weight`, for a constant weight on a CPU: each that can pack the weight is preceded by the same
        with a packed weight. An operation that `target` does not support has only the default, whose build gives the
        reason.
        """
        if target.unsupported_reason(operation):
            return iter((Variant(Dispatch(operation, Default())),))
        if not packs_weight or target.limits.backend != _CPU:
            return _distinct(self._every(operation, target))
        return _distinct(_with_packed(self._every(operation, target, packs_weight=True)))

    @cached_property
    def _of_constants(self) -> TunedConfigurations | None:
        """The tuned configurations for weights that are constants."""
        return self.configurations and replace(self.configurations, packed_weights=True)

    def _every(
        self, operation: Operation, target: Target, *, packs_weight: bool = False
    ) -> Iterator[Variant]:
        default = Dispatch(operation, Default())
        if self.flags:
            yield Variant(default, self.flags)
        for configurations in (self._of_constants if packs_weight else None, self.configurations):
            if configurations is None:
                continue
            found = configurations.of(operation)
            if found.problem and not found.is_foreign:
                _log.warning("%s: the library's entry cannot be used: %s", operation.name, found.problem)
            if found.is_foreign and found.family == target.family:
                _warn_of_upgrade(configurations.library.file, found.problem)
            if found.dispatch is not None and _has_tools(found.dispatch):
                yield Variant(found.dispatch)
        microkernel = packed_microkernel(operation, target) if packs_weight else None
        if microkernel is not None:
            yield Variant(Dispatch(operation, microkernel))
        form = fastest_form(operation, target, packed_weights=packs_weight)
        if form is not None:
            yield Variant(Dispatch(operation, form))
        yield Variant(default)


@cache
def _warn_of_upgrade(file: Path | None, problem: str) -> None:
    """Log, once for each library, that its entries are for another compiler."""
    if file is None:
        return
    folder = file.parent if file.name == LIBRARY_FILE else file
    shipped = shipped_name(folder)  # as a rule the default, which the user did not name
    level, hint = logging.INFO if shipped else logging.WARNING, prove_hint(shipped or str(folder))
    _log.log(level, "%s: entries are not used, because they were %s; %s", file, problem, hint)


def _version(file: Path) -> tuple[int, ...]:
    """Changes when the file is written; empty if it cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=4)
def _of_library(file: Path, version: tuple[int, ...], target: Target, revision: str) -> LaunchTuning:
    """What a library has for a target. It is read once for each `version` of the file: a large one takes half a second."""
    return LaunchTuning(TunedConfigurations(Library.load(file), target, revision, ignores_epilogues=True))


def _distinct(variants: Iterable[Variant]) -> Iterator[Variant]:
    found: set[Variant] = set()
    for each in variants:
        if each not in found:
            found.add(each)
            yield each


def _with_packed(variants: Iterable[Variant]) -> Iterator[Variant]:
    """Each variant, after the same one with a packed weight if it can pack it."""
    for each in variants:
        operation = each.dispatch.operation
        packed = each.dispatch.configuration.with_packed_weight(operation)
        if packed is not None:
            yield replace(each, dispatch=Dispatch(operation, packed))
        yield each


def _has_tools(dispatch: Dispatch) -> bool:
    """Whether the package that compiles its kernel is installed."""
    is_triton = isinstance(dispatch.configuration.kernel(dispatch.operation), KernelSource)
    return not is_triton or bool(triton_version())
