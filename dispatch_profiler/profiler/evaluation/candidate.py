"""A candidate: one dispatch with its vmfbs, whatever their source."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import (
    Artifact,
    Dispatch,
    DispatchEntry,
    ModuleEntry,
    OperationEntry,
    State,
    Tree,
)
from dispatch_profiler.dispatches.tree import Purpose
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.files.regular import read_bounded, sha256
from dispatch_profiler.operations import DEFAULT_SEED
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers.library_calls import LibraryCall, ManifestPair


class DamagedVmfb(ToolError):
    """A vmfb differs from what was compiled."""


@dataclass(frozen=True)
class Vmfb:
    """A vmfb, identified by its content: two with equal `sha256` are the same. `size` is in bytes.

    `load` returns the content. It may read a file each time, so that a large tree is not held in memory. It
    raises DamagedVmfb if the file differs from the compiled one.
    """

    sha256: str
    size: int
    load: Callable[[], bytes] = field(compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes) -> Vmfb:
        """A vmfb held in memory; hashed only here."""
        return cls(sha256(data), len(data), lambda: data)

    def __reduce__(self) -> tuple[Callable[[str, bytes], Vmfb], tuple[str, bytes]]:
        """Pickle the content too, which is checked when it is unpickled."""
        return _received, (self.sha256, self.load())


def _received(digest: str, data: bytes) -> Vmfb:
    found = Vmfb.of(data)
    if found.sha256 != digest:
        raise DamagedVmfb("a vmfb was damaged on its way")
    return found


@dataclass(frozen=True)
class Candidate:
    """One dispatch to evaluate, from a tree, a bundle or a search.

    `verify` executes the dispatch once per call, `profile` executes it `repeat` times (as does a library on
    a GPU); candidates that share a module share both. Without them, `state` and `reason` say why the
    dispatch did not compile or was not applied; a library call (`LibraryCall`) never has any. `target` is
    the name of the target, `compiler` the compiler's revision, `module_key` the content hash of all inputs
    of the module, `flags` the compiler flags. `command` is the start of the command line that reproduces
    its record; empty if no tree holds it. `kernel` is the hash of the generated code, empty if unknown: with equal
    flags, candidates of equal kernels execute the same instructions. `is_transient` marks a failure that may not occur
    at another time or on another machine.
    """

    dispatch: Dispatch
    target: str
    verify: Vmfb | None = None
    profile: Vmfb | None = None
    repeat: int = 1
    state: State = State.COMPILED
    reason: str = ""
    compiler: str = ""
    module_key: str = ""
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    kernel: str = ""
    is_transient: bool = False

    @property
    def vmfbs(self) -> tuple[Vmfb, ...]:
        """The verify and the profile vmfb, as far as the candidate has them."""
        return tuple(each for each in (self.verify, self.profile) if each is not None)

    @property
    def library(self) -> str:
        """The library that computes it; empty for a dispatch, including one with an external kernel."""
        configuration = self.dispatch.configuration
        return configuration.library if isinstance(configuration, LibraryCall) else ""


# -- options ---------------------------------------------------------------------------------------

# Options of an `Evaluator`.


@dataclass(frozen=True)
class EvaluatorOptions:
    """What to do with each candidate. `seconds` is the time limit of one step of one candidate.

    `peaks` is the folder that caches hardware peaks; without it, no result is implausible. `references` is
    the folder that caches references; without it, each process computes them again.
    """

    device: str
    verify: bool = True
    profile: bool = True
    measure: MeasureOptions = MeasureOptions()
    seed: int = DEFAULT_SEED
    seconds: float = 120.0
    memory_bytes: int | None = None
    build_dir: Path | None = None
    peaks: Path | None = None
    references: Path | None = None


# -- vmfb refs -------------------------------------------------------------------------------------

# How a worker process refers to vmfbs that it holds.


@dataclass(frozen=True)
class VmfbRef:
    """A vmfb that this process holds (see `receive`), by the hash of its content."""

    sha256: str
    #: Executions of a dispatch per call.
    repeat: int
    #: For a library: loaded with `Library.load_repeated` instead of called eagerly.
    is_repeated: bool = False

    @property
    def is_library(self) -> bool:
        """Whether it stands for the library of this process."""
        return not self.sha256


#: The library of this process, called eagerly; it needs no vmfb.
LIBRARY = VmfbRef("", 1)


@dataclass(frozen=True)
class VmfbRefs:
    """The two vmfbs of a dispatch. `packs_weight`: only the verify vmfb packs the weight in every call."""

    verify: VmfbRef
    profile: VmfbRef
    packs_weight: bool = False


# -- from manifest ---------------------------------------------------------------------------------

# Candidates of a generated tree: the entries of its manifest, with the vmfbs beside it.


_PURPOSES: tuple[Purpose, Purpose] = ("verify", "profile")


def check_compiled(pairs: Collection[ManifestPair]) -> None:
    """Raise UsageError if none of the dispatches was compiled: a record of each would say the same."""
    if all(dispatch.state is State.GENERATED for _, dispatch in pairs):
        selected = counted(len(pairs), "selected dispatch")
        raise UsageError(f"not compiled: {selected}", hint="run compile.py first")


#: The first words of a command line that profiles, where the package is installed.
PROFILE_COMMAND = ("dispatch-profiler", "profile")


class TreeCandidates:
    """Makes candidates of the dispatches of `tree`; their vmfbs are read on demand.

    `program` begins the command lines that reproduce their records.
    """

    def __init__(self, tree: Tree, program: tuple[str, ...] = PROFILE_COMMAND) -> None:
        self._tree = tree
        self._program = program
        #: Vmfbs read so far that differ from the compiled ones.
        self.damaged: list[Path] = []

    def candidates(self, pairs: Iterable[ManifestPair]) -> list[Candidate]:
        """One for each of `pairs`, in order."""
        return [self.candidate(*pair) for pair in pairs]

    def candidate(self, entry: OperationEntry, dispatch: DispatchEntry) -> Candidate:
        """The candidate of one dispatch, or of a library call for the operation of `entry`."""
        if isinstance(dispatch.dispatch.configuration, LibraryCall):
            # Any dispatch of its operation reproduces its record.
            command = command_of(self._tree, entry.dispatches[0].dispatch.name, self._program)
            repeat = max((module.repeat for module in entry.modules), default=1)
            target = entry.target_of(dispatch.dispatch)
            return Candidate(dispatch.dispatch, target, repeat=repeat, command=command)
        module = entry.module_of(dispatch.dispatch)
        candidate = Candidate(
            dispatch.dispatch,
            entry.target_of(dispatch.dispatch),
            state=dispatch.state,
            reason=dispatch.reason,
            command=command_of(self._tree, dispatch.dispatch.name, self._program),
            is_transient=dispatch.is_transient,
        )
        if module is not None:
            candidate = replace(
                candidate,
                repeat=module.repeat,
                compiler=module.compiler,
                module_key=module.key,
                flags=module.flags,
            )
        if dispatch.state is State.COMPILED and module is not None:
            verify, profile = (self._vmfb(entry, module, purpose) for purpose in _PURPOSES)
            return replace(candidate, verify=verify, profile=profile)
        if dispatch.state in (State.GENERATED, State.COMPILED):
            reason = dispatch.reason or "not compiled yet: run compile.py"
            return replace(candidate, state=State.NOT_COMPILED, reason=reason)
        return candidate

    def _vmfb(self, entry: OperationEntry, module: ModuleEntry, purpose: Purpose) -> Vmfb:
        path = self._tree.vmfb(entry.operation, module.name, purpose)
        artifact = module.verify if purpose == "verify" else module.profile
        wanted = artifact or Artifact("", 0)
        return Vmfb(wanted.sha256, wanted.bytes, partial(self._read, path, wanted))

    def _read(self, path: Path, wanted: Artifact) -> bytes:
        """The content of a file. Raises DamagedVmfb, and remembers the path, if its hash differs."""
        try:
            data = read_bounded(path, wanted.bytes)
        except UsageError:
            data = b""
        if path in self.damaged or sha256(data) != wanted.sha256:
            if path not in self.damaged:
                self.damaged.append(path)
            raise DamagedVmfb(f"{path.name} is damaged or missing: run compile.py again")
        return data


# -- reproduce -------------------------------------------------------------------------------------

# The command line that reproduces one record.


def command_of(tree: Tree, dispatch: str, program: tuple[str, ...] = PROFILE_COMMAND) -> tuple[str, ...]:
    """The start of the command line that profiles `dispatch` of `tree` with `program`."""
    return (*program, tree.option, f"--dispatches={dispatch}")


def command_line(command: tuple[str, ...], options: EvaluatorOptions, library: str = "") -> str:
    """`command` (see `command_of`) with `options`; empty if `command` is.

    With `library`, it measures that library for the operation of the dispatch. Options with their default
    values are omitted.
    """
    if not command:
        return ""
    usual = type(options)(options.device)
    given, stop = options.measure, options.measure.stop
    mebibytes = None if options.memory_bytes is None else f"{options.memory_bytes // 2**20}"
    values = {
        "verification-enabled": (options.verify, usual.verify, "false"),
        "profiling-enabled": (options.profile, usual.profile, "false"),
        "benchmark-repetitions": (stop.count, None, str(stop.count)),
        "precision": (stop.width, usual.measure.stop.width, f"{100.0 * stop.width:.12g}"),
        "budget": (stop.seconds, usual.measure.stop.seconds, f"{stop.seconds!r}"),
        "batch-size": (given.batch, None, str(given.batch)),
        "mode": (given.mode, usual.measure.mode, given.mode.value),
        "timeout": (options.seconds, usual.seconds, f"{options.seconds!r}"),
        "memory-limit": (options.memory_bytes, None, mebibytes),
        "build-dir": (options.build_dir, None, str(options.build_dir)),
        "providers": (library, "", library),
    }
    words = [*command, f"--device={options.device}", f"--seed={options.seed}"]
    words += [f"--{name}={text}" for name, (value, default, text) in values.items() if value != default]
    return shlex.join(words)
