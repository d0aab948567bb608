"""Providers of kernels: IREE and libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from dispatch_profiler.configurations import Configuration, Default, Limits
from dispatch_profiler.dispatches import Dispatch, DispatchEntry, OperationEntry, State
from dispatch_profiler.errors import MissingDependency, UsageError, did_you_mean
from dispatch_profiler.families import find_family
from dispatch_profiler.operations import ContractFunction, Operation, operation_kind
from dispatch_profiler.profiler.measurement.kernels import Library
from dispatch_profiler.profiler.providers import in_numpy, in_torch
from dispatch_profiler.profiler.providers.in_numpy._base import NumpyFamily
from dispatch_profiler.profiler.providers.in_torch._base import TorchFamily
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE
from dispatch_profiler.runtime import DeviceUri

# -- libraries -------------------------------------------------------------------------------------

# Libraries that compute the same operations, for comparison with IREE's dispatches.
#
# To the profiler, a library behaves like a device with a loaded vmfb: it binds calls, which are timed and
# verified like any others. To add one, add a file like `numpy_library.py`, a folder like `in_numpy` in `_FAMILIES`, and
# a line in `open_library`.


#: What has a family for each operation that the library computes.
_FAMILIES: Mapping[str, tuple[str, type[NumpyFamily] | type[TorchFamily]]] = {
    "numpy": (in_numpy.__name__, NumpyFamily),
    "torch": (in_torch.__name__, TorchFamily),
}
#: Kind of operation -> the method of torch-prepacked.
_PREPACKED = {"matmul": "matmul", "conv2d": "conv2d", "conv3d": "conv3d"}
LIBRARIES = (*_FAMILIES, "torch-prepacked")
#: Library -> the package that it needs, where that has another name.
PACKAGES: Mapping[str, str] = {"torch-prepacked": "torch"}


def library_method(library: str, kind: str) -> str:
    """The method of `library` that computes operations of `kind`; "" if it does not support them."""
    if library not in _FAMILIES:
        return _PREPACKED.get(kind, "")
    family = find_family(_FAMILIES[library][0], operation_kind(kind).family, _FAMILIES[library][1])
    return family.method(kind) if family else ""


def open_library(name: str, device: str, threads: int) -> Library:
    """Open the library `name` on the device with the URI `device`.

    Raises UsageError if it cannot run there, MissingDependency if it is not installed.
    """
    if name == "numpy":
        if DeviceUri.parse(device).is_gpu:
            raise UsageError(f"numpy runs on the CPU, but the device is {device}")
        from dispatch_profiler.profiler.providers.numpy_library import NumpyLibrary

        return NumpyLibrary()
    from dispatch_profiler.profiler.providers.torch_library import PREPACKED, TorchLibrary, TorchPrepacked

    return TorchPrepacked(device, threads) if name == PREPACKED else TorchLibrary(device, threads)


@cache
def open_contraction(device: str) -> ContractFunction | None:
    """A contraction in float64 on the GPU `device`; None for other devices, or where torch cannot use it."""
    if not device or not DeviceUri.parse(device).is_gpu:
        return None
    try:
        from dispatch_profiler.profiler.providers.torch_gpu import GpuContraction

        return GpuContraction(device)
    except (MissingDependency, UsageError):
        return None


#: Provider of the tree's dispatches.
IREE = "iree"
PROVIDERS = (IREE, *LIBRARIES)

#: A dispatch of a tree, and its operation.
ManifestPair = tuple[OperationEntry, DispatchEntry]


@dataclass(frozen=True)
class LibraryCall(Configuration):
    """An operation computed by a `method` of `library`; nothing is generated or compiled for it."""

    kind: ClassVar[str] = "library"

    library: str
    method: str = ""

    @property
    def split_k(self) -> int:  # type: ignore[override]
        return 1

    @property
    def name(self) -> str:
        """`numpy_matmul`, `numpy_im2col`, `torch_conv2d`"""
        return f"{self.library}_{self.method}" if self.method else self.library

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return None if self.method else f"{self.library} does not support {operation.kind}"


def parse_providers(text: str) -> tuple[str, ...]:
    """`iree,torch` -> ("iree", "torch"). Raises UsageError for unknown, repeated and empty names."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in PROVIDERS:
            raise UsageError(f"--providers: unknown provider {name!r}", hint=did_you_mean(name, PROVIDERS))
        if names.count(name) > 1:
            raise UsageError(f"--providers: {name!r} is given twice")
    return names


def check_installed(providers: Iterable[str]) -> None:
    """Raise MissingDependency if a library is not installed. Nothing is imported."""
    for name in providers:
        package = PACKAGES.get(name, name)
        if name != IREE and importlib.util.find_spec(package) is None:
            raise MissingDependency(
                f"--providers: {package} is not installed",
                hint=f"run python -m pip install {package}, or remove {name} from --providers",
            )


def choose_reference(text: str | None, providers: Sequence[str]) -> str:
    """The reference for speedups: `text`, else the first library, else the compiler's default.

    Raises UsageError if `text` is not measured.
    """
    libraries = [name for name in providers if name != IREE]
    if text is None:
        return libraries[0] if libraries else DEFAULT_REFERENCE
    if text == DEFAULT_REFERENCE or text in libraries:
        return text
    if text in LIBRARIES:
        raise UsageError(
            f"--reference={text} is not among the providers",
            hint=f"add it: --providers={','.join(providers)},{text}",
        )
    raise UsageError(
        f"--reference: unknown reference {text!r}", hint=did_you_mean(text, [DEFAULT_REFERENCE, *libraries])
    )


def with_providers(pairs: Iterable[ManifestPair], providers: Sequence[str]) -> list[ManifestPair]:
    """All dispatches to profile: the dispatches of the tree, and one call per library and operation.

    Within an operation, baselines come first: the default, then the libraries.

        tiles, default, tiles; torch  ->  default, torch, tiles, tiles
    """
    groups: dict[Operation, list[ManifestPair]] = {}
    for entry, dispatch in pairs:
        groups.setdefault(entry.operation, []).append((entry, dispatch))
    found: list[ManifestPair] = []
    for operation, group in groups.items():
        entry = group[0][0]
        own = sorted(group, key=lambda pair: pair[1].dispatch.configuration != Default())
        ours = own if IREE in providers else []
        first = 1 if ours and ours[0][1].dispatch.configuration == Default() else 0
        calls = [(entry, _call(operation, name)) for name in providers if name != IREE]
        found += [*ours[:first], *calls, *ours[first:]]
    return found


def _call(operation: Operation, library: str) -> DispatchEntry:
    call = LibraryCall(library, library_method(library, operation.kind))
    return DispatchEntry(Dispatch(operation, call), State.COMPILED)
