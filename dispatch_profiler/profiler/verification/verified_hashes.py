"""Hashes of verified results: a result that equals one of them bit for bit is correct too.

Configurations that add products in the same order compute the same bits, and so do the two vmfbs of a dispatch.
Hashing a result costs less than sending it to the process that compares it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.operations import Distribution, ErrorBound, Operation

#: Bytes that a thread hashes at a time.
_HASHED = 2**21
#: Hashes kept for each reference; few orders of summation are worthwhile for an operation.
_KEPT = 16
#: References whose hashes are kept: enough for the operations that a search evaluates in turn.
_REFERENCES = 256


@dataclass(frozen=True)
class Result:
    """The results of an execution; `arrays` is None if their hash was known."""

    digest: str
    arrays: tuple[np.ndarray, ...] | None


def result_of(arrays: tuple[np.ndarray, ...], known: frozenset[str]) -> Result:
    """`arrays` with the hash of their types, shapes and bits, or only the hash if it is `known`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        for part in _hashed_in_blocks(array):
            digest.update(part)
    name = digest.hexdigest()
    return Result(name, None if name in known else arrays)


def _hashed_in_blocks(array: np.ndarray) -> Sequence[bytes]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return in_blocks(lambda block: hashlib.sha256(data[block]).digest(), len(data), _HASHED)


@dataclass(frozen=True)
class Expected:
    """The arguments that determine a reference: see `References.get`."""

    operation: Operation
    distribution: Distribution
    stepwise: bool = False
    error_bound: ErrorBound | None = None


class VerifiedHashes:
    """Hashes of the most recent results that were compared and correct."""

    def __init__(self) -> None:
        #: Least recently added to first.
        self._found: OrderedDict[Expected, deque[str]] = OrderedDict()

    def of(self, expected: Expected) -> frozenset[str]:
        """Hashes of results that match one reference."""
        return frozenset(self._found.get(expected, ()))

    def add(self, expected: Expected, digest: str) -> None:
        """Add one; forgets the hashes of the references that received a hash least recently."""
        self._found.setdefault(expected, deque(maxlen=_KEPT)).append(digest)
        self._found.move_to_end(expected)
        if len(self._found) > _REFERENCES:
            self._found.popitem(last=False)
