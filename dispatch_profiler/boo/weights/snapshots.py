"""Snapshots of weights, and the values that derive from them.

    snapshot = SNAPSHOTS.of(weight)                     # the elements of the weight now
    packed = snapshot.value("HWCF", (), permute)        # computed once for each snapshot

A snapshot on the CPU is a copy of the weight's memory. While every byte of the weight equals the copy, `of` returns the
same snapshot with its values; otherwise it takes a new snapshot. Values are computed from the copy, so they match the
snapshot even if other threads write to the weight meanwhile.

A frozen snapshot is taken at the first call and then used without a comparison, until `refreeze` or until the weight's
memory is freed: the user has promised not to change the weight. On GPUs, where a comparison would wait for the device,
all snapshots are frozen.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.boo.weights.memory import MemoryComparison, TensorPlace, copied, place_of
from dispatch_profiler.errors import UsageError

_log = logging.getLogger(LOGGER)
#: After more than `_OFTEN` changes in a row, a weight is expected to change again: no snapshot is taken for `_REST`
#: calls.
_OFTEN, _REST = 2, 16
#: The largest part of the machine's memory for the values of frozen snapshots.
_MOST_MEMORY = 0.5


class FrozenMemory(NamedTuple):
    """The number of frozen weights, and the bytes of the values that derive from them."""

    weights: int
    bytes: int


class WeightSnapshot:
    """One weight at one moment.

    `tensor` is a copy of the weight. It is None in a frozen snapshot, whose values are computed from the weight itself
    when they are first needed.
    """

    def __init__(self, tensor: Tensor | None, owner: Snapshots) -> None:
        self.tensor = tensor
        self._owner = owner
        #: Name of a derivation -> snapshots of the other weights in it, and the value.
        self._values: dict[Hashable, tuple[tuple[WeightSnapshot, ...], Any]] = {}

    def elements(self, weight: Tensor) -> Tensor:
        """The elements of `weight`, whose snapshot this is, for its values: the copy, or the frozen weight itself."""
        return weight if self.tensor is None else self.tensor

    @property
    def bytes(self) -> int:
        """The memory of the values."""
        return sum(_bytes(value) for _, value in list(self._values.values()))

    def value(self, name: Hashable, others: Sequence[WeightSnapshot], make: Callable[[], Any]) -> Any:
        """The result of `make()` for this snapshot and `others`, the snapshots of other weights: kept, or made now.

        `name` identifies the derivation, with all its parameters and the places of the weights. `make` runs without
        grad and without torch's modes. Threads that need the same value compute it once. An error of `make` is raised,
        and nothing is kept.
        """
        kept = self._values.get(name)
        if kept is None or not _are_same(kept[0], others):
            with self._owner.lock:
                kept = self._values.get(name)
                if kept is None or not _are_same(kept[0], others):
                    kept = tuple(others), _made(make)
                    self._values[name] = kept
        return kept[1]


def _are_same(known: Sequence[WeightSnapshot], others: Sequence[WeightSnapshot]) -> bool:
    return all(one is other for one, other in zip(known, others, strict=True))


def _made(make: Callable[[], Any]) -> Any:
    """The result of `make`. It is not an inference tensor, so that autograd can save it in later calls."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        value = make()
        for device in {each.device for each in _tensors(value) if each.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # other streams may read it from now on
    return value


def _tensors(value: Any) -> Sequence[Tensor]:
    return value if isinstance(value, (tuple, list)) else [value]


def _bytes(value: Any) -> int:
    return sum(each.numel() * each.element_size() for each in _tensors(value))


@dataclass(eq=False)
class _SnapshotEntry:
    """The latest snapshot of the weight at one place. `storage` drops the entry when the weight's memory is freed."""

    snapshot: WeightSnapshot
    comparison: MemoryComparison | None
    storage: weakref.ref[Any]
    #: The `id` of the tensor of the snapshot: a parameter may get other memory later, and then this memory again.
    weight: int
    #: Changes since the weight was last unchanged, and remaining calls until another snapshot may be taken.
    changes: int = 0
    rest: int = 0


class Snapshots:
    """The latest snapshot of each weight, by the weight's place. Threads may share it.

    It refers to the memory of weights weakly, and never to the tensors: `torch.utils.swap_tensors` does not swap
    tensors with weak references. Frozen snapshots may take `most_bytes`, by default a part of this machine's memory.
    """

    def __init__(self, most_bytes: float | None = None) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[tuple[TensorPlace, bool], _SnapshotEntry] = {}
        #: Replaced when a frozen snapshot is dropped: callers that keep frozen snapshots then look them up again.
        self.generation = object()
        self._is_full = False
        self._reset_lock()
        # A thread that does not exist in a forked process may hold the lock.
        os.register_at_fork(after_in_child=self._reset_lock)

    def _reset_lock(self) -> None:
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def frozen(self) -> FrozenMemory:
        """The number and the memory of the current frozen snapshots."""
        entries = [each.snapshot for (_, is_frozen), each in list(self._entries.items()) if is_frozen]
        return FrozenMemory(len(entries), sum(each.bytes for each in entries))

    def of(self, weight: Tensor, *, frozen: bool = False) -> WeightSnapshot | None:
        """The snapshot of the current elements of `weight`; with `frozen`, the snapshot from the first such call.

        None for tensors without plain memory, while a CUDA graph is captured, for a weight that changes in most calls,
        and without `frozen` for a weight on a GPU. Values that derive from such weights are computed in every call.
        """
        place = place_of(weight)
        if place is None:
            return None
        entry = self._entries.get((place, frozen))
        if frozen:
            if entry is None and self._may_freeze(place):
                entry = self._freeze(place, weight)
            return None if entry is None else entry.snapshot
        if place.device.type != "cpu":
            return None
        if entry is None:
            return self._take(place, weight, None)
        if entry.rest:
            entry.rest -= 1
            return None
        assert entry.comparison is not None
        if entry.comparison.is_equal():
            entry.changes = 0
            return entry.snapshot
        return self._take(place, weight, entry)

    def _take(
        self, place: TensorPlace, weight: Tensor, before: _SnapshotEntry | None
    ) -> WeightSnapshot | None:
        """A new snapshot, unless another thread has just taken it, or the weight changes too often."""
        with self.lock:
            entry = self._entries.get((place, False))
            if entry is not before and entry is not None and entry.comparison and entry.comparison.is_equal():
                return entry.snapshot
            changes = before.changes + 1 if before is not None else 0
            if before is not None and changes > _OFTEN:
                before.changes, before.rest = 0, _REST
                return None
            with _disable_current_modes(), torch.inference_mode(False):
                copy = copied(place)
            if copy is None:
                return None
            snapshot = WeightSnapshot(copy, self)
            self._keep(place, weight, snapshot, MemoryComparison([place], [copy]), changes)
            return snapshot

    def _may_freeze(self, place: TensorPlace) -> bool:
        """Whether a frozen snapshot can be taken now."""
        if place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # its values would be in memory that each replay overwrites
        limit = _limit() if self._most_bytes is None else self._most_bytes
        if not self._is_full and self.frozen.bytes > limit:
            self._is_full = True
            _log.warning(
                "values of frozen weights take %.1f GB and have reached the limit: further weights are not frozen",
                self.frozen.bytes / 1e9,
            )
        return not self._is_full

    def _freeze(self, place: TensorPlace, weight: Tensor) -> _SnapshotEntry:
        with self.lock:
            entry = self._entries.get((place, True))
            return entry or self._keep(place, weight, WeightSnapshot(None, self), None)

    def _keep(
        self,
        place: TensorPlace,
        weight: Tensor,
        snapshot: WeightSnapshot,
        comparison: MemoryComparison | None,
        changes: int = 0,
    ) -> _SnapshotEntry:
        """Let `of` find a snapshot while the memory of `weight` lives. Frozen snapshots have no `comparison`."""
        frozen = comparison is None
        owner, key = weakref.ref(self), (place, frozen)

        def drop(_: object) -> None:  # without a lock: the garbage collector may run this anywhere
            snapshots = owner()
            if snapshots is not None:
                snapshots._entries.pop(key, None)
                if frozen:
                    snapshots.generation = object()

        storage = weakref.ref(weight.untyped_storage(), drop)
        entry = self._entries[key] = _SnapshotEntry(snapshot, comparison, storage, id(weight), changes)
        return entry

    def refreeze(self, weights: Iterable[Tensor] | None = None) -> None:
        """Drop the frozen snapshots of `weights` and their views, or all of them. The next calls take new snapshots.

        For a weight whose memory was exchanged through `.data`, the snapshots of its former memory are dropped, too.
        """
        with self.lock:
            self.generation = object()
            self._is_full = False
            given = None if weights is None else list(weights)
            tensors = {id(each) for each in given or ()}
            storages = {id(storage) for storage in _storages(given or ())}
            for key, entry in list(self._entries.items()):
                is_given = given is None or entry.weight in tensors or id(entry.storage()) in storages
                if key[1] and is_given:
                    self._entries.pop(key, None)

    def clear(self) -> None:
        """Drop all snapshots."""
        with self.lock:
            self.generation = object()
            self._entries.clear()


def _storages(weights: Iterable[Tensor]) -> Iterable[Any]:
    for each in weights:
        try:
            yield each.untyped_storage()
        except (RuntimeError, NotImplementedError):
            continue  # it has no memory, and so no snapshot


def _limit() -> float:
    """The largest number of bytes for the values of frozen snapshots."""
    try:
        return _MOST_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float("inf")


#: The snapshots that all operators of this process share.
SNAPSHOTS = SESSION.keep("weights", Snapshots())


def refreeze(model: torch.nn.Module | Iterable[Tensor] | None = None) -> None:
    """Take new snapshots of frozen weights: of a model, of some tensors, or of all frozen weights of this process.

    The next call that uses a weight takes the snapshot. In that call, inductor also compiles graphs with frozen weights
    again. Raises UsageError if `model` is neither a module nor tensors.
    """
    if model is None:
        SNAPSHOTS.refreeze()
        return
    given = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else model
    weights = [given] if isinstance(given, torch.Tensor) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(each, torch.Tensor) for each in weights):
        raise UsageError(
            f"refreeze takes a torch.nn.Module, tensors or nothing, but got {type(model).__name__}"
        )
    SNAPSHOTS.refreeze(weights)
