"""Which driver of the CPU runs each kernel, as notes beside the kernels in the cache."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

from dispatch_profiler.compiler import Cache


@dataclass
class DriverChoices(MutableMapping[str, str]):
    """`KERNEL-2t` -> driver, where KERNEL is the key of a kernel; without a cache, only for this process.

    Iteration yields what this process read or wrote.
    """

    cache: Cache | None
    _known: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> str:
        if key not in self._known and self.cache is not None:
            kernel, _, threads = key.rpartition("-")
            found = self.cache.notes(kernel).get(threads)
            if found is not None:
                self._known[key] = found
        return self._known[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known[key] = value
        if self.cache is not None:
            kernel, _, threads = key.rpartition("-")
            self.cache.add_note(kernel, threads, value)

    def __delitem__(self, key: str) -> None:
        del self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
