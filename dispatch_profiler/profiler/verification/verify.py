"""Compares results with their references: every element counts, and NaN never passes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import threading
import zipfile
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.errors import ToolError, WorkerOutOfMemory
from dispatch_profiler.files.regular import read_bounded, sha256, write_atomic
from dispatch_profiler.operations import (
    ContractFunction,
    Distribution,
    ErrorBound,
    Operation,
    Reference,
    Tensor,
    operation_kind,
)
from dispatch_profiler.profiler.verification.inputs import draw


@dataclass(frozen=True)
class Comparison:
    """`passed`, or the worst element of the result `name` and how many are wrong."""

    passed: bool
    wrong: int = 0
    elements: int = 0
    index: tuple[int, ...] = ()
    expected: float = 0.0
    actual: float = 0.0
    tolerance: float = 0.0
    name: str = "result"

    @property
    def message(self) -> str:
        """`3 of 512 elements are wrong; the worst: result[0, 7] = 2.5, but should be 1 exactly`"""
        if self.passed:
            return ""
        where = ", ".join(map(str, self.index))
        actual, expected = f"{self.actual:.9g}", f"{self.expected:.9g}"
        if actual == expected or float(actual) != self.actual or float(expected) != self.expected:
            actual, expected = (repr(x).removesuffix(".0") for x in (self.actual, self.expected))
        within = f"within {self.tolerance:.3g}" if self.tolerance else "exactly"
        return (
            f"{self.wrong} of {self.elements} elements are wrong; the worst: "
            f"{self.name}[{where}] = {actual}, but should be {expected} {within}"
        )


class ShapeMismatch(ToolError):
    """The result's shape or type differs from the operation's."""


def compare(
    operation: Operation, actual: Sequence[np.ndarray], references: Sequence[Reference]
) -> Comparison:
    """Compare each of `actual` (shapes and types of `operation.results`) with its reference.

    Returns the first comparison that did not pass, or the last. Raises ShapeMismatch.
    """
    for result, array, reference in zip(operation.results, actual, references, strict=True):
        comparison = compare_result(result, array, reference)
        if not comparison.passed:
            break
    return comparison


def compare_result(result: Tensor, actual: np.ndarray, reference: Reference) -> Comparison:
    """Compare one result.

    Raises ShapeMismatch for a wrong type or shape, in this order, before comparing values.
    """
    if actual.dtype != result.type.dtype or actual.shape != result.shape:
        raise ShapeMismatch(
            f"{result.name} is {actual.dtype} {actual.shape}, but should be {result.type.dtype} {result.shape}"
        )
    found, expected = actual.reshape(-1), reference.expected.reshape(-1)
    tolerance = None if reference.tolerance is None else reference.tolerance.reshape(-1)

    def right_in(block: slice) -> np.ndarray:
        if tolerance is None:
            return np.asarray(found[block] == expected[block])  # False for NaN
        with np.errstate(invalid="ignore"):
            wide = found[block].astype(np.float64)
            away = np.abs(wide - expected[block])
            # False for NaN; infinities have no difference.
            return np.asarray((away <= tolerance[block]) | (wide == expected[block]))

    right = in_blocks(right_in, actual.size)
    if all(part.all() for part in right):
        return Comparison(True, elements=actual.size, name=result.name)
    # Widening narrow types preserves whether zeros and infinities are equal.
    allowed = np.zeros(()) if reference.tolerance is None else reference.tolerance
    worst = _worst(np.concatenate(right).reshape(actual.shape), actual, reference.expected, allowed)
    return replace(worst, name=result.name)


def _worst(right: np.ndarray, actual: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> Comparison:
    wide, should = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = np.where(right, -np.inf, np.nan_to_num(np.abs(wide - should) - tolerance, nan=np.inf))
    index = np.unravel_index(int(np.argmax(excess)), actual.shape)
    return Comparison(
        passed=False,
        wrong=int(right.size - np.count_nonzero(right)),
        elements=actual.size,
        index=tuple(int(i) for i in index),
        expected=float(should[index]),
        actual=float(wide[index]),
        tolerance=float(np.broadcast_to(tolerance, actual.shape)[index]),
    )


# -- verified hashes -------------------------------------------------------------------------------

# Hashes of verified results: a result that equals one of them bit for bit is correct too.
#
# Configurations that add products in the same order compute the same bits, and so do the two vmfbs of a dispatch.
# Hashing a result costs less than sending it to the process that compares it.


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
    """The arguments that determine a reference: see `References.get`. `seed` is that of the inputs."""

    operation: Operation
    distribution: Distribution
    stepwise: bool = False
    error_bound: ErrorBound | None = None
    seed: int = 0


class VerifiedHashes:
    """Hashes of the most recent results that were compared and correct. Threads may share it."""

    def __init__(self) -> None:
        #: Least recently added to first.
        self._found: OrderedDict[Expected, deque[str]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, expected: Expected) -> frozenset[str]:
        """Hashes of results that match one reference."""
        with self._lock:
            return frozenset(self._found.get(expected, ()))

    def add(self, expected: Expected, digest: str) -> None:
        """Add one; forgets the hashes of the references that received a hash least recently."""
        with self._lock:
            self._found.setdefault(expected, deque(maxlen=_KEPT)).append(digest)
            self._found.move_to_end(expected)
            if len(self._found) > _REFERENCES:
                self._found.popitem(last=False)


# -- references ------------------------------------------------------------------------------------

# References, computed once and cached by content, in memory and on disk.


#: Starting torch for a GPU takes as long as so much work of numpy: several seconds at 20 to 100 GFLOP/s in float64.
STARTING_FLOPS = 10**11
#: Smaller references are left to numpy, which needs no copies to a GPU.
LARGE_FLOPS = 10**9
#: Bytes of a file besides its arrays: names, shapes and the hash.
_LARGEST_HEADERS = 2**16
#: Modules that determine a reference, besides the operation's module.
_SOURCES = (
    "dispatch_profiler.blocks",
    "dispatch_profiler.operations._base",
    "dispatch_profiler.operations.attention.reference",
    "dispatch_profiler.operations.contraction.contraction",
    "dispatch_profiler.operations.contraction.reference",
    "dispatch_profiler.operations.convolution.layouts",
    "dispatch_profiler.operations.convolution.sums",
    "dispatch_profiler.operations.element_types",
    "dispatch_profiler.operations.epilogue_steps",
    "dispatch_profiler.operations.epilogues",
    "dispatch_profiler.operations.geometry",
    "dispatch_profiler.operations.norm.normalization",
    "dispatch_profiler.operations.reductions",
    "dispatch_profiler.operations.rounding",
    "dispatch_profiler.profiler.verification.inputs",
)


class References:
    """References of operations under one seed.

    The key of a file holds the operation, the distribution, the error bound of a form, the seed and a hash of the
    code that computes them. A file that cannot be read is computed again and replaced. Without a folder, nothing is stored on
    disk. The function that `large` returns, if any, contracts large operations in float64; it is called first when there has
    been enough work for it. Memory keeps references of `kept_bytes`, which should be enough for the operations that a search
    evaluates in turn.
    """

    def __init__(
        self,
        folder: Path | None,
        seed: int,
        large: Callable[[], ContractFunction | None] = lambda: None,
        kept_bytes: int = 256 * 2**20,
    ) -> None:
        self._kept_bytes = kept_bytes
        self._folder = folder
        self._seed = seed
        self._large = large
        #: FLOP of all large references so far.
        self._work = 0
        #: Least recently used first.
        self._recent: OrderedDict[Expected, tuple[Reference, ...]] = OrderedDict()

    def get(
        self,
        operation: Operation,
        distribution: Distribution,
        stepwise: bool = False,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """The reference of each result for inputs drawn from `distribution`; keeps the most recent ones.

        For `stepwise` see `Operation.reference`, for `error_bound` see `Configuration.error_bound`.
        """
        stepwise = stepwise and operation.rounds_between_steps  # otherwise both references are the same
        key = Expected(operation, distribution, stepwise, error_bound)
        if key not in self._recent:
            self._recent[key] = self._load_or_compute(key)
            self._forget(operation)
        self._recent.move_to_end(key)
        return self._recent[key]

    def _forget(self, operation: Operation) -> None:
        """Drop the least recently used references of other operations if all together are too large."""
        size = sum(map(_bytes_of, self._recent.values()))
        for key in [key for key in self._recent if key.operation != operation]:
            if size <= self._kept_bytes:
                return
            size -= _bytes_of(self._recent.pop(key))

    def path(
        self,
        operation: Operation,
        distribution: Distribution,
        stepwise: bool = False,
        error_bound: ErrorBound | None = None,
    ) -> Path | None:
        """Path of the reference on disk, which need not exist; None without a folder."""
        if self._folder is None:
            return None
        sources = "" if error_bound is None else type(error_bound).__module__
        content = [
            operation.to_dict(),
            distribution.value,
            self._seed,
            code_version(operation.kind, sources),
        ]
        content += ["stepwise"] if stepwise else []
        content += [] if error_bound is None else [repr(error_bound)]
        name = sha256(json.dumps(content, sort_keys=True).encode())[:32]
        return self._folder / operation.kind / f"{name}.npz"

    def _load_or_compute(self, key: Expected) -> tuple[Reference, ...]:
        path = self.path(key.operation, key.distribution, key.stepwise, key.error_bound)
        found = _load(path, key.operation) if path else None
        if found is None:
            inputs = draw(key.operation, key.distribution, self._seed)
            found = self._by_gpu(key, inputs)
            if found is not None:
                return found  # not stored: that takes longer than computing it again
            found = _computed(key, inputs)
            if path is None:
                return found
            with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
                write_atomic(path, _pack(found, path.stem))
        return found

    def _by_gpu(self, key: Expected, inputs: Sequence[np.ndarray]) -> tuple[Reference, ...] | None:
        """None for a small operation, without a suitable GPU, or if the GPU has too little memory."""
        operation = key.operation
        if operation.contraction is None or operation.flops < LARGE_FLOPS:
            return None
        self._work += operation.flops
        contract = self._large() if self._work >= STARTING_FLOPS else None
        if contract is not None:
            with contextlib.suppress(WorkerOutOfMemory):
                return _computed(key, inputs, contract)
        return None


def _computed(
    key: Expected, inputs: Sequence[np.ndarray], contract: ContractFunction | None = None
) -> tuple[Reference, ...]:
    return key.operation.reference(
        inputs, stepwise=key.stepwise, contract=contract, error_bound=key.error_bound
    )


def _bytes_of(references: Sequence[Reference]) -> int:
    return sum(
        array.nbytes for each in references for array in (each.expected, each.tolerance) if array is not None
    )


def _pack(values: Sequence[Reference], key: str) -> bytes:
    """An npz with a hash of its key and arrays. bf16 and f8 are stored as bits: numpy cannot name them."""
    arrays: dict[str, np.ndarray] = {}
    for index, value in enumerate(values):
        expected = np.ascontiguousarray(value.expected)
        arrays[f"expected{index}"] = expected.view(f"u{expected.dtype.itemsize}")
        arrays[f"exact{index}"] = np.array(value.tolerance is None)
        if value.tolerance is not None:
            arrays[f"tolerance{index}"] = value.tolerance
    buffer = io.BytesIO()
    np.savez(buffer, digest=np.array(_digest(arrays, key)), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _load(path: Path, operation: Operation) -> tuple[Reference, ...] | None:
    # At most 8 bytes for what is expected of an element, and 8 for its tolerance.
    limit = _LARGEST_HEADERS + 16 * sum(result.elements for result in operation.results)
    try:
        data = io.BytesIO(read_bounded(path, limit))
        if any(member.compress_type != zipfile.ZIP_STORED for member in zipfile.ZipFile(data).infolist()):
            return None  # not what `_pack` writes; it may expand to any size
        stored = np.load(data, allow_pickle=False)
        arrays = {name: stored[name] for name in stored.files}
        if str(arrays.pop("digest")) != _digest(arrays, path.stem):
            return None
        found = []
        for index, result in enumerate(operation.results):
            dtype = result.type.dtype if arrays[f"exact{index}"] else np.dtype(np.float64)
            found.append(Reference(arrays[f"expected{index}"].view(dtype), arrays.get(f"tolerance{index}")))
        return tuple(found)
    except Exception:
        # zip and npy report damage in many ways. In every case, compute it again.
        return None


def _digest(arrays: dict[str, np.ndarray], key: str) -> str:
    digest = hashlib.sha256(key.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


@cache
def code_version(kind: str, error_bound: str = "") -> str:
    """Hash of the sources that determine a reference: after a change, it is computed again.

    `error_bound` names the module of another bound than the operation's.
    """
    modules = [operation_kind(kind).__module__, *_SOURCES, *filter(None, [error_bound])]
    files = [sys.modules[name].__file__ for name in modules]
    return sha256(b"".join(Path(file).read_bytes() for file in files if file))
