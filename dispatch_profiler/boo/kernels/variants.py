"""The ways to compile an operation for launches, fastest first: tuned, in the fastest form, the compiler's default.

Of these and of further ways, `LaunchTuning.candidates` are worth measuring on the machine at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, islice
from pathlib import Path

from dispatch_profiler.boo.environment import LOGGER, TUNING_VARIABLE
from dispatch_profiler.compiler import Compiler
from dispatch_profiler.compiler.cuda.triton import triton_version
from dispatch_profiler.configurations import (
    AmxMicrokernel,
    Configuration,
    Default,
    DepthwiseGradient,
    DotMicrokernel,
    KernelSource,
    Microkernel,
    PackedInCalls,
    Tuned,
    WinogradMicrokernel,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.library.library import (
    LIBRARY_FILE,
    Library,
    find_library,
    library_file,
    shipped_for,
    shipped_name,
)
from dispatch_profiler.library.tuned import TunedConfigurations, TunedLookup, prove_hint
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import (
    Target,
    fastest_form,
    likely_kernels,
    ranked_dot_microkernels,
    ranked_microkernels,
    untuned_kernels,
)

#: The code generator for CPUs.
_CPU = "llvm-cpu"
_SPEC_SUFFIX = ".mlir"
_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
_log = logging.getLogger(LOGGER)
#: Candidates of an operation at most: each is compiled.
MOST_CANDIDATES = 4
#: Microkernels beside which no forms are tried.
_SEVERAL = 2
#: What `_ruled` has for constant weights. All but dot microkernels pack them.
_RULED = (AmxMicrokernel, DotMicrokernel, Microkernel, WinogradMicrokernel)
#: What `_ruled` has for operations whose operands may change in every call.
_OF_CHANGING = (PackedInCalls, DepthwiseGradient)


@dataclass(frozen=True)
class Variant:
    """A dispatch, and compiler flags in addition to the target's and the configuration's."""

    dispatch: Dispatch
    flags: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The configuration's name, followed by the actual configuration of a library entry: `tile_config_tuned (...)`."""
        configuration = self.dispatch.configuration
        tuned = configuration.fields().get("tuned")
        return f"{configuration.name} ({tuned})" if tuned else configuration.name

    @property
    def kernel_identity(self) -> tuple[Configuration, tuple[str, ...]]:
        """What the kernel follows from: an entry of a library is compiled like its configuration."""
        configuration = self.dispatch.configuration
        if isinstance(configuration, Tuned):
            return configuration.inner, (*self.flags, *configuration.extra_flags)
        return configuration, self.flags


@dataclass(frozen=True)
class LaunchTuning:
    """Tuned configurations for one target: from a library, or as flags that pass a tuning spec to the compiler.

    An operation without an entry in `configurations`, the library that the user names, has the entry of `included`, the
    shipped library for the hardware.
    """

    configurations: TunedConfigurations | None = None
    flags: tuple[str, ...] = ()
    included: TunedConfigurations | None = None

    @classmethod
    def read(cls, source: str | None, target: Target, compiler: Compiler) -> LaunchTuning:
        """Read a library (a folder or a shipped name) or a tuning spec. Raises UsageError if it cannot be read.

        A `source` of None means the shipped library for `target`; an empty `source`, no tuning.
        """
        if source == "":
            return cls()
        shipped = shipped_for(target)
        path = shipped if source is None else Path(source).expanduser()
        if path is None:
            return cls()
        if path.suffix == _SPEC_SUFFIX and path.is_file():
            return cls(flags=(f"{_SPEC_FLAG}={path.absolute()}",))
        try:
            file = _named_library(path)
            files = dict.fromkeys((file, *([] if shipped is None else [library_file(shipped).absolute()])))
            versions = tuple((each, _version(each)) for each in files)
            return _of_libraries(versions, target, compiler.revision, Hardware.here(target))
        except UsageError as error:
            raise UsageError(f"{TUNING_VARIABLE}: {error}", hint=error.hint) from error

    def variants(
        self, operation: Operation, target: Target, *, packs_weight: bool = False
    ) -> Iterator[Variant]:
        """The variants of `operation`, without duplicates, made lazily: most kernels use the first variant.

        The last variant is the compiler's default. With `packs_weight`, for a constant weight on a CPU, each variant
        that can pack the weight follows a copy of itself that does. An operation that `target` does not support has
        only the default, whose build reports the reason.
        """
        if target.unsupported_reason(operation):
            return iter((Variant(Dispatch(operation, Default())),))
        if not packs_weight or target.limits.backend != _CPU:
            return _distinct(self._every(operation, target))
        return _distinct(_with_packed(self._every(operation, target, packs_weight=True)))

    def candidates(
        self, operation: Operation, target: Target, *, packs_weight: bool = False
    ) -> tuple[Variant, ...]:
        """Variants of an operation that are worth measuring, the likely fastest first; at most `MOST_CANDIDATES`.

        The first one is the first of `variants`. With a tuning spec, and for other targets than CPUs, it is the only one.
        The compiler's default is one of them only if nothing else is known.
        """
        every = self.variants(operation, target, packs_weight=packs_weight)
        first = next(every)
        if self.flags or target.limits.backend != _CPU or target.unsupported_reason(operation):
            return (first,)
        usual = [each for each in (first, *every) if not isinstance(each.dispatch.configuration, Default)]
        found = {first.kernel_identity: first}
        choose = _packing_candidates if packs_weight else _unpacked_candidates
        for each in choose(usual, operation, target):
            found.setdefault(each.kernel_identity, each)
        return tuple(islice(found.values(), MOST_CANDIDATES))

    def is_promising(self, operation: Operation, target: Target) -> bool:
        """Whether a kernel that reads a changing weight, or a gradient's, may be as fast as torch's.

        On a CPU, torch computes products and convolutions faster than forms do, so that only tuned kernels, those that
        pack the weight, and those for gradients of depthwise filters are promising. Other kernels have to be measured.
        """
        if self.flags or target.limits.backend != _CPU or operation.contraction is None:
            return True
        known = self.variants(operation, target)
        return any(isinstance(each.dispatch.configuration, (Tuned, *_RULED, *_OF_CHANGING)) for each in known)

    @cached_property
    def _libraries(self) -> tuple[TunedConfigurations, ...]:
        """The libraries to look in, in order."""
        return tuple(each for each in (self.configurations, self.included) if each is not None)

    @cached_property
    def _of_constants(self) -> tuple[TunedConfigurations, ...]:
        """The same for constant weights: entries that pack the weight come first, library by library."""
        return tuple(
            each for library in self._libraries for each in (replace(library, packed_weights=True), library)
        )

    def lookup(self, operation: Operation, *, packs_weight: bool = False) -> TunedLookup | None:
        """The entry for launches of `operation`, of the first library that has a usable one; None without a library.

        For a constant weight, an entry that was tuned without packing the weight is a problem, not a dispatch.
        """
        is_packed = packs_weight and operation.contraction is not None
        found = []
        for library in self._libraries:
            tuned = replace(library, packed_weights=is_packed).of(operation)
            if is_packed and tuned.dispatch and not _is_for_constants(tuned.dispatch.configuration):
                problem = "it was tuned without packing the weight"
                tuned = replace(tuned, dispatch=None, problem=problem)
            if tuned.dispatch is not None:
                return tuned
            found.append(tuned)
        return next((each for each in found if each.problem), found[0] if found else None)

    def lookup_for_sizes(self, operation: Operation) -> TunedLookup | None:
        """The entry for several sizes, of which `operation` has one, of the first library with a usable entry; None without a library."""
        found = [library.for_sizes(operation) for library in self._libraries]
        usable = next((each for each in found if each.dispatch is not None), None)
        return usable or next((each for each in found if each.problem), found[0] if found else None)

    def sizes_of(self, operation: Operation) -> tuple[SizeRange, ...]:
        """The sizes for which the libraries have entries for several sizes of `operation`, whatever size it has."""
        every = (each.sizes_of(operation) for each in self._libraries)
        return tuple(dict.fromkeys(chain.from_iterable(every)))

    def _tuned(self, operation: Operation, target: Target, *, packs_weight: bool) -> Iterator[TunedLookup]:
        """The lookups in the libraries; entries that cannot be used are logged."""
        for configurations in self._of_constants if packs_weight else self._libraries:
            tuned = configurations.of(operation)
            if tuned.problem and not tuned.is_foreign:
                _log.warning("%s: the library's entry cannot be used: %s", operation.name, tuned.problem)
            if tuned.is_foreign and tuned.family == target.family:
                _warn_of_upgrade(configurations.library.file, tuned.problem)
            yield tuned

    def _every(
        self, operation: Operation, target: Target, *, packs_weight: bool = False
    ) -> Iterator[Variant]:
        """Tuned variants, what rules choose, the fastest form and the compiler's default.

        If the weight is packed, entries that were tuned without packing it follow the rules: their kernels take 1.7 times
        as long (geometric mean of the 65 operations of a shipped library that have no other entry).
        """
        default = Dispatch(operation, Default())
        if self.flags:
            yield Variant(default, self.flags)
        ruled = partial(_ruled, operation, target, packs_weight=packs_weight)
        is_packed = packs_weight and operation.contraction is not None
        last = list[Variant]()
        for tuned in self._tuned(operation, target, packs_weight=packs_weight):
            if tuned.dispatch is None or not _has_tools(tuned.dispatch):
                continue
            if is_packed and not _is_for_constants(tuned.dispatch.configuration):
                last.append(Variant(tuned.dispatch))
                continue
            if tuned.shares_otherwise:
                yield from ruled()
            yield Variant(tuned.dispatch)
        yield from ruled()
        yield from last
        form = fastest_form(operation, target, packed_weights=packs_weight)
        if form is not None:
            yield Variant(Dispatch(operation, form))
        yield Variant(default)


def has_rule(operation: Operation, target: Target) -> bool:
    """Whether rules choose kernels of this package for operands that may change in every call."""
    return next(_ruled(operation, target, packs_weight=False), None) is not None


def _ruled(operation: Operation, target: Target, *, packs_weight: bool) -> Iterator[Variant]:
    """What rules choose."""
    for each in untuned_kernels(operation, target, packs_weight=packs_weight):
        dispatch = Dispatch(operation, each)
        if _has_tools(dispatch):
            yield Variant(dispatch)


@cache
def _warn_of_upgrade(file: Path | None, problem: str) -> None:
    """Log, once per library, that its entries were tuned with another compiler."""
    if file is None:
        return
    folder = file.parent if file.name == LIBRARY_FILE else file
    shipped = shipped_name(folder)  # usually the default library, which the user did not choose
    level, hint = logging.INFO if shipped else logging.WARNING, prove_hint(shipped or str(folder))
    _log.log(level, "%s: entries are not used, because they were %s; %s", file, problem, hint)


def _version(file: Path) -> tuple[int, ...]:
    """Identifies the contents of a file: it changes when the file is written. Empty if the file cannot be read."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _named_library(path: Path) -> Path:
    """The file of the library `path`. Raises UsageError for a file of another kind."""
    if path.is_file() and path.name != LIBRARY_FILE:
        raise UsageError(
            f"{path} is neither a library nor a tuning spec",
            hint=f"name a folder with a {LIBRARY_FILE}, a shipped library, or a tuning spec, FILE{_SPEC_SUFFIX}",
        )
    return library_file(find_library(path)).absolute()


#: Files of libraries, and what identifies their contents.
_Versions = tuple[tuple[Path, tuple[int, ...]], ...]


@lru_cache(maxsize=4)
def _of_libraries(files: _Versions, target: Target, revision: str, hardware: Hardware) -> LaunchTuning:
    """The configurations of one library or two for a target, in the order of `files`."""
    first, *others = (_of_library(*each, target, revision, hardware) for each in files)
    return LaunchTuning(first, included=others[0] if others else None)


@lru_cache(maxsize=8)
def _of_library(
    file: Path, version: tuple[int, ...], target: Target, revision: str, hardware: Hardware
) -> TunedConfigurations:
    """A library's configurations for a target. Reads each `version` of the file once: a large file takes half a second."""
    return TunedConfigurations(
        Library.load(file), target, revision, ignores_epilogues=True, hardware=hardware
    )


def _packing_candidates(usual: Sequence[Variant], operation: Operation, target: Target) -> Iterator[Variant]:
    """The `usual` variants for constant weights, with further ones among them; all of the usual ones if there are none.

    Forms are 1.4 times as slow as microkernels in the geometric mean, so that they are tried only without several of
    these.
    """
    packing = [each for each in usual if _is_for_constants(each.dispatch.configuration)] or usual
    tuned = [each for each in packing if isinstance(each.dispatch.configuration, Tuned)]
    ruled = [each for each in packing if isinstance(each.dispatch.configuration, _RULED)]
    likely = likely_kernels(operation, target)
    yield from tuned[:1]
    yield from ruled
    yield from (Variant(Dispatch(operation, each)) for each in likely)
    if len({*likely, *(each.dispatch.configuration for each in ruled)}) < _SEVERAL:
        yield from packing


def _is_for_constants(configuration: Configuration) -> bool:
    """Whether rules or a search choose it for constant weights: dot microkernels, which pack none, too."""
    inner = configuration.inner if isinstance(configuration, Tuned) else configuration
    return configuration.packs_weight or isinstance(inner, DotMicrokernel)


def _unpacked_candidates(usual: Sequence[Variant], operation: Operation, target: Target) -> Iterator[Variant]:
    """The `usual` variants: what was tuned, what rules choose, and a form; and the next microkernel of a kind that needs no packing.

    Forms of gradients of depthwise filters are far slower than their kernels, so that they are not tried beside these.
    """
    fast = [each for each in usual if isinstance(each.dispatch.configuration, (Tuned, DepthwiseGradient))]
    has_gradients = any(isinstance(each.dispatch.configuration, DepthwiseGradient) for each in fast)
    yield from fast if has_gradients else usual
    kinds = {type(each.dispatch.configuration) for each in usual}
    if DotMicrokernel in kinds:
        yield from (
            Variant(Dispatch(operation, each)) for each in ranked_dot_microkernels(operation, target)[1:2]
        )
    if Microkernel in kinds:
        for further in ranked_microkernels(operation, target, packed=False)[1:2]:
            yield Variant(Dispatch(operation, further))


def _distinct(variants: Iterable[Variant]) -> Iterator[Variant]:
    seen: set[Variant] = set()
    for each in variants:
        if each not in seen:
            seen.add(each)
            yield each


def _with_packed(variants: Iterable[Variant]) -> Iterator[Variant]:
    """Each variant, preceded by a copy that packs the weight if its configuration can pack it."""
    for each in variants:
        operation = each.dispatch.operation
        packed = each.dispatch.configuration.with_packed_weight(operation)
        if packed is not None:
            yield replace(each, dispatch=Dispatch(operation, packed))
        yield each


def _has_tools(dispatch: Dispatch) -> bool:
    """Whether the package that compiles the kernel of `dispatch` is installed."""
    kernels = dispatch.configuration.kernels(dispatch.operation)
    return bool(triton_version()) or not any(isinstance(each, KernelSource) for each in kernels)
