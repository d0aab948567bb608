"""A dispatch: one operation with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import ElementType, ErrorBound, Operation
from dispatch_profiler.outside_causes import outside_cause
from dispatch_profiler.targets import Target


@dataclass(frozen=True)
class Dispatch:
    """One operation with one configuration.

    Its name is the MLIR function, the runtime entry point and the text that `--dispatches` matches.
    """

    operation: Operation
    configuration: Configuration

    # Cached: generating, compiling and reporting read the name several times.
    @cached_property
    def name(self) -> str:
        return f"{self.operation.name}_{self.configuration.name}"

    @property
    def packing_function(self) -> str:
        """The function that packs the weight, for programs that pack it in a separate call."""
        return f"{self.name}$pack"

    @property
    def effective_operation(self) -> Operation:
        """The operation that its kernel computes: `operation` with the accumulator of the configuration."""
        return self.configuration.effective_operation(self.operation)

    @property
    def error_bound(self) -> ErrorBound | None:
        """The error bound of the configuration; None if the operation's own bound applies."""
        return self.configuration.error_bound(self.operation)

    def error_bound_on(self, target: Target) -> ErrorBound | None:
        """`error_bound`, or else the bound of the compiler's own code on `target`; None if the operation's bound applies."""
        return self.error_bound or target.error_bound(self.operation)

    @property
    def flops(self) -> int:
        """FLOP that its kernel computes at least; speeds are stated for the operation's FLOP."""
        return self.configuration.flops(self.operation)

    @property
    def multiplied(self) -> ElementType:
        """Type of the factors in its kernel: `flops` are of this type."""
        return self.configuration.multiplied(self.operation)

    def arguments(self) -> dict[str, str]:
        """The operation's command-line arguments, with split-K where the kind supports it."""
        arguments = self.operation.arguments()
        if self.operation.product is not None:
            slices = self.configuration.split_k
            arguments["split_k_mode"] = "parallel" if slices > 1 else "N/A"
            arguments["split_k_slices"] = str(slices) if slices > 1 else "N/A"
        return arguments


# -- entries ---------------------------------------------------------------------------------------

# Entries of a manifest: operations, their dispatches, and the modules compiled from them.


class State(str, Enum):
    """Progress of a dispatch. The last two states have a reason."""

    GENERATED = "generated"
    COMPILED = "compiled"
    NOT_COMPILED = "not compiled"
    NOT_APPLIED = "not applied"


@dataclass(frozen=True)
class DispatchEntry:
    """One dispatch of the tree.

    `applied` is the configuration that the compiler applied, in its own words; empty until compiled.
    `is_transient` marks a failure that may not occur at another time or on another machine.
    """

    dispatch: Dispatch
    state: State = State.GENERATED
    reason: str = ""
    applied: str = ""
    is_transient: bool = False

    @property
    def is_tried_again(self) -> bool:
        """Whether the next run compiles it again: it lacked memory, processes or disk space, or was killed."""
        return self.is_transient and bool(outside_cause(self.reason))


@dataclass(frozen=True)
class Artifact:
    """A compiled file: the SHA-256 of its content and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class ModuleEntry:
    """One pair of vmfbs: all configurations of an operation that share their compiler flags.

    `key` is the content hash of all inputs. `repeat` is how often the profile vmfb executes each dispatch
    per call. `target` is the target of its build, which may differ from the target that its operation was generated
    for. Without `verify` and `profile`, none of its dispatches compiled.
    """

    name: str
    key: str
    repeat: int
    compiler: str
    target: str
    verify: Artifact | None
    profile: Artifact | None
    #: The compiler flags of the target, of the configurations, and of the command line.
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperationEntry:
    """One operation of the tree with its dispatches and the modules compiled from them.

    `target` is the target that it was generated for. `source_sha256` is the hash of the generated source,
    which contains the dispatches that the generator wrote.
    """

    operation: Operation
    target: str
    source_sha256: str
    dispatches: tuple[DispatchEntry, ...]
    modules: tuple[ModuleEntry, ...] = ()
    #: How often the workload runs the operation, and where the count was read, when the operation was last generated.
    count: int = 1
    origin: str = ""

    def same_source(self, other: OperationEntry) -> bool:
        """Whether `other` has the same generated source and dispatches, and all modules here are for its target."""
        return _made(self) == _made(other) and all(m.target == other.target for m in self.modules)

    def with_use_of(self, other: OperationEntry) -> OperationEntry:
        """This entry with the count and the origin of `other`; itself if they are equal."""
        if (self.count, self.origin) == (other.count, other.origin):
            return self
        return replace(self, count=other.count, origin=other.origin)

    def with_added(self, dispatch: Dispatch | None) -> OperationEntry:
        """This entry with `dispatch`, if any, instead of dispatches that the generator did not write.

        A `dispatch` that it already has keeps its state and its module.
        """
        kept = tuple(
            d for d in self.dispatches if d.dispatch.configuration.is_generated or d.dispatch == dispatch
        )
        modules = {d.dispatch.configuration.module for d in kept}
        new = () if dispatch is None or dispatch in (d.dispatch for d in kept) else (DispatchEntry(dispatch),)
        return replace(
            self,
            dispatches=(*kept, *new),
            modules=tuple(m for m in self.modules if m.name in modules),
        )

    def module_of(self, dispatch: Dispatch) -> ModuleEntry | None:
        """The module that holds `dispatch`; None until it is compiled."""
        return next((m for m in self.modules if m.name == dispatch.configuration.module), None)

    def target_of(self, dispatch: Dispatch) -> str:
        """The target that `dispatch` was compiled for; until then, the target that it was generated for."""
        module = self.module_of(dispatch)
        return self.target if module is None else module.target


def _made(entry: OperationEntry) -> tuple[object, ...]:
    generated = (d.dispatch for d in entry.dispatches if d.dispatch.configuration.is_generated)
    return entry.target, entry.source_sha256, tuple(generated)
