"""Candidates of a generated tree: the entries of its manifest, with the vmfbs beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Artifact, DispatchEntry, ModuleEntry, OperationEntry, State, Tree
from dispatch_profiler.dispatches.tree import Purpose
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import read_bounded, sha256
from dispatch_profiler.profiler.evaluation.candidate import Candidate, DamagedVmfb, Vmfb
from dispatch_profiler.profiler.evaluation.reproduce import command_of
from dispatch_profiler.profiler.providers.library_calls import LibraryCall, ManifestPair

_PURPOSES: tuple[Purpose, Purpose] = ("verify", "profile")


def check_compiled(pairs: Collection[ManifestPair]) -> None:
    """Raise UsageError if none of the dispatches was compiled: a record of each would say the same."""
    if all(dispatch.state is State.GENERATED for _, dispatch in pairs):
        selected = counted(len(pairs), "selected dispatch")
        raise UsageError(f"not compiled: {selected}", hint="run compile.py first")


class TreeCandidates:
    """Makes candidates of the dispatches of `tree`; their vmfbs are read on demand."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        #: Vmfbs read so far that differ from the compiled ones.
        self.damaged: list[Path] = []

    def candidates(self, pairs: Iterable[ManifestPair]) -> list[Candidate]:
        """One for each of `pairs`, in order."""
        return [self.candidate(*pair) for pair in pairs]

    def candidate(self, entry: OperationEntry, dispatch: DispatchEntry) -> Candidate:
        """The candidate of one dispatch, or of a library call for the operation of `entry`."""
        if isinstance(dispatch.dispatch.configuration, LibraryCall):
            # Any dispatch of its operation reproduces its record.
            command = command_of(self._tree, entry.dispatches[0].dispatch.name)
            repeat = max((module.repeat for module in entry.modules), default=1)
            target = entry.target_of(dispatch.dispatch)
            return Candidate(dispatch.dispatch, target, repeat=repeat, command=command)
        module = entry.module_of(dispatch.dispatch)
        candidate = Candidate(
            dispatch.dispatch,
            entry.target_of(dispatch.dispatch),
            state=dispatch.state,
            reason=dispatch.reason,
            command=command_of(self._tree, dispatch.dispatch.name),
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
