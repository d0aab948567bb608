"""Values derived from parameters, such as a permuted weight: computed once for each version of their sources.

    permuted = derive("HWCF", [weight], lambda: weight.permute(2, 3, 1, 0).contiguous())

A value is kept until a source is written to or its memory is freed. Writes are noticed by `Tensor._version`, as in
autograd: by operations in place, such as those of an optimizer, through any view. What bypasses the version (`.data`,
`.numpy()`, another process) is noticed on the CPU if it changes one of the sampled words, as a training step does;
`forget` drops what is kept. Inference tensors have no version: what derives from them is computed in every call, unless
`pin` promises that they do not change.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch

from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor

Value = TypeVar("Value")
#: torch as Any, because parts of it are untyped.
_torch: Any = torch
#: Words of a source on the CPU that are compared, spread over its memory, and their bytes.
_SAMPLES, _WORD = 8, 4
#: The version of a pinned inference tensor.
_PINNED = -1
#: What may change of a tensor that stays the same object, read without a function of Python.
_VERSION: Any = attrgetter("_version")
_ADDRESS: Any = torch.Tensor.data_ptr
_STRIDE: Any = torch.Tensor.stride


@dataclass(frozen=True, eq=False)
class _Entry:
    """A value, with the state of its sources before it was computed. `storages` drop the entry as they die."""

    value: Any
    versions: tuple[int, ...]
    words: SampledWords
    sampled: bytes
    storages: list[weakref.ref[Any]]

    def is_current(self, versions: tuple[int, ...]) -> bool:
        return self.versions == versions and self.words.read() == self.sampled


class DerivedValues:
    """A cache of values that derive from tensors, which it refers to weakly. Threads may share it."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._pinned: dict[int, weakref.ref[Any]] = {}
        #: Calls of `forget` until now: those who keep values themselves compare it.
        self.forgotten = 0
        self._reset_lock()
        # A thread that does not exist in a forked process may hold the lock.
        os.register_at_fork(after_in_child=self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def derive(self, name: Hashable, sources: Sequence[Tensor], make: Callable[[], Value]) -> Value:
        """What `make()` returned for these sources in their present versions, or what it returns now.

        `name` tells derivations from the same sources apart, so it has all their parameters. Sources are the same if
        they are views of one storage at the same address, with equal shapes, strides and types. `make` runs without
        grad. Its value is a tensor or a tuple of tensors, on which callers do nothing in place. Several threads that
        want the same value compute it once. The value is not kept if a source is a subclass of tensor or has no
        memory, in a dispatch mode, or if the value is a view of a source. While a CUDA graph is captured, nothing is
        kept and nothing that was kept is used: the graph computes the value in each replay, from what the sources then
        hold. Raises what `make` raises, and keeps nothing then.
        """
        versions = self._versions(sources)
        key = None if versions is None else _key(name, sources)
        if versions is None or key is None or is_captured(sources):
            with torch.no_grad():
                return make()
        entry = self._entries.get(key)
        if entry is None or not entry.is_current(versions):
            entry = self._make(key, sources, make)
        return entry.value

    def pin(self, *tensors: Tensor) -> None:
        """Promise that inference tensors among `tensors` do not change, until `unpin` or until their memory is freed.

        The promise is for all views of their memory. On other tensors, it has no effect. Raises RuntimeError or
        NotImplementedError for a tensor without memory.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._pinned[id(storage)] = weakref.ref(storage, dropping(self._pinned, id(storage)))

    def unpin(self, *tensors: Tensor) -> None:
        """Take back what `pin` promised for the memory of `tensors`."""
        for tensor in tensors:
            self._pinned.pop(id(tensor.untyped_storage()), None)

    def forget(self, *tensors: Tensor) -> None:
        """Drop what derives from the memory of `tensors`; without arguments, everything."""
        self.forgotten += 1
        if not tensors:
            self._entries.clear()
            return
        gone = {id(tensor.untyped_storage()) for tensor in tensors}
        for key, entry in list(self._entries.items()):
            if gone.intersection(id(each()) for each in entry.storages):
                self._entries.pop(key, None)

    def keeps(self, tensor: Tensor) -> bool:
        """Whether what derives from `tensor` is kept, as far as its class and its version decide it."""
        return self._versions([tensor]) is not None

    # -- how sources are recognized --------------------------------------------------------------

    def _versions(self, sources: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The version of each source; None if one has none."""
        found = []
        for tensor in sources:
            if type(tensor) not in PLAIN:
                return None
            if not tensor.is_inference():
                found.append(tensor._version)
            elif self._pinned and id(tensor.untyped_storage()) in self._pinned:
                found.append(_PINNED)
            else:
                return None
        return tuple(found)

    def _make(self, key: Hashable, sources: Sequence[Tensor], make: Callable[[], Any]) -> _Entry:
        """A new entry, unless another thread has made it meanwhile. It is kept if it may be."""
        with self._lock:
            versions = self._versions(sources) or ()
            entry = self._entries.get(key)
            if entry is not None and entry.is_current(versions):
                return entry
            # Before `make`: a write while it runs makes the entry outdated.
            words = SampledWords(sources)
            sampled = words.read()
            # Not an inference tensor, so that autograd can save it in later calls.
            with torch.inference_mode(False), torch.no_grad():
                value = make()
            entry = _Entry(value, versions, words, sampled, [])
            storages = [tensor.untyped_storage() for tensor in sources]
            if _is_ready(value, storages):
                drop = dropping(self._entries, key)
                entry.storages.extend(weakref.ref(each, drop) for each in storages)
                self._entries[key] = entry
            return entry


def dropping(kept: dict[Any, Any], key: Hashable) -> Callable[[object], None]:
    """What drops an entry. It takes no lock, because the garbage collector may run it anywhere."""

    def drop(_: object) -> None:
        kept.pop(key, None)

    return drop


def _key(name: Hashable, sources: Sequence[Tensor]) -> Hashable | None:
    """Identifies a derivation from these plain sources, whatever their versions; None if nothing is to be kept.

    Storages are identified by their Python objects, which live as long as they do.
    """
    if _torch._C._len_torch_dispatch_stack():
        return None
    try:
        return (
            name,
            *(
                (
                    id(tensor.untyped_storage()),
                    tensor.data_ptr(),
                    tensor.shape,
                    tensor.stride(),
                    tensor.dtype,
                    tensor.is_neg(),
                    tensor.is_conj(),
                )
                for tensor in sources
            ),
        )
    except (RuntimeError, NotImplementedError):
        return None  # sparse, or in a transformation of functorch


class SampledWords:
    """Some words of the memory of tensors on the CPU, which can be read while the tensors live."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        addresses = [each for tensor in tensors for each in _sampled(tensor)]
        words = sorted({each for each in addresses if each % _WORD == 0})
        #: Single bytes, of tensors that have no aligned word.
        self._bytes = [ctypes.c_uint8.from_address(each) for each in addresses if each % _WORD]
        self._memory: Any = None
        if words:
            first: Any = (ctypes.c_uint32 * 1).from_address(words[0])
            count = (words[-1] - words[0]) // _WORD + 1
            # Everything from the first word to the last one, of which only the words are read.
            self._memory = np.lib.stride_tricks.as_strided(
                np.frombuffer(first, np.uint32), (count,), (_WORD,)
            )
            self._at = (np.array(words) - words[0]) // _WORD

    def read(self) -> bytes:
        """All of them."""
        single = bytes(each.value for each in self._bytes)
        return single if self._memory is None else self._memory.take(self._at).tobytes() + single


def _sampled(tensor: Tensor) -> Iterable[int]:
    """Addresses of words in the memory of a tensor: multiples of `_WORD` where it has any."""
    if not tensor.is_cpu or not tensor.numel():
        return []
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size, start = (last + 1) * tensor.element_size(), tensor.data_ptr()
    if start % _WORD or size < _WORD:
        return {start + (size - 1) * number // (_SAMPLES - 1) for number in range(_SAMPLES)}
    end = size // _WORD - 1
    return {start + _WORD * (end * number // (_SAMPLES - 1)) for number in range(_SAMPLES)}


def _is_ready(value: Any, storages: Sequence[Any]) -> bool:
    """Whether `value` can be kept: it has memory of its own, which other streams may read from now on."""
    tensors = value if isinstance(value, (tuple, list)) else [value]
    if any(each.untyped_storage() is storage for each in tensors for storage in storages):
        return False  # it would keep its source alive
    for device in {each.device for each in tensors if each.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return True


def is_captured(tensors: Sequence[Tensor]) -> bool:
    """Whether what is computed from `tensors` becomes part of a CUDA graph, whose memory is overwritten in each replay."""
    return _on_gpu(tensors) and torch.cuda.is_current_stream_capturing()


def _on_gpu(tensors: Sequence[Tensor]) -> bool:
    return any(each.is_cuda for each in tensors)


#: What all operators of this process share.
VALUES = DerivedValues()
derive, pin, unpin, forget = VALUES.derive, VALUES.pin, VALUES.unpin, VALUES.forget


@dataclass(frozen=True, eq=False)
class SourceState:
    """What tensors were when something was derived from them: faster to compare than `derive` is to find a value.

    For those who keep what they derive from the same tensors, in the same order.
    """

    ids: list[int]
    versions: list[int]
    addresses: list[int]
    strides: list[tuple[int, ...]]
    words: SampledWords
    sampled: bytes
    forgotten: int
    on_gpu: bool
    #: These drop what was derived as a tensor dies, so that no other object has its `id`.
    references: list[weakref.ref[Any]]

    @classmethod
    def of(cls, sources: Sequence[Tensor], drop: Callable[[object], None]) -> SourceState | None:
        """The present state; None if writes to one of `sources` could not be noticed, or while a CUDA graph is captured."""
        if any(type(each) not in PLAIN or each.is_inference() for each in sources) or is_captured(sources):
            return None
        words = SampledWords(sources)
        return cls(
            list(map(id, sources)),
            list(map(_VERSION, sources)),
            list(map(_ADDRESS, sources)),
            list(map(_STRIDE, sources)),
            words,
            words.read(),
            VALUES.forgotten,
            _on_gpu(sources),
            [weakref.ref(each, drop) for each in sources],
        )

    def is_current(self, sources: Sequence[Tensor]) -> bool:
        """Whether `sources` are the same tensors, and have not been written to, nor forgotten, nor are being captured."""
        return (
            list(map(id, sources)) == self.ids
            and list(map(_VERSION, sources)) == self.versions
            and list(map(_ADDRESS, sources)) == self.addresses
            and list(map(_STRIDE, sources)) == self.strides
            and self.words.read() == self.sampled
            and VALUES.forgotten == self.forgotten
            and not (self.on_gpu and is_captured(sources))
        )
