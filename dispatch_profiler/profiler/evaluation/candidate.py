"""A candidate: one dispatch with its vmfbs, whatever their source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.profiler.providers.library_calls import LibraryCall


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
    flags, candidates of equal kernels execute the same instructions.
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

    @property
    def vmfbs(self) -> tuple[Vmfb, ...]:
        """The verify and the profile vmfb, as far as the candidate has them."""
        return tuple(each for each in (self.verify, self.profile) if each is not None)

    @property
    def library(self) -> str:
        """The library that computes it; empty for a dispatch, including one with an external kernel."""
        configuration = self.dispatch.configuration
        return configuration.library if isinstance(configuration, LibraryCall) else ""
