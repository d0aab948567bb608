"""Copies the memory of tensors on the CPU, and compares it with the copy byte for byte later.

Version counters or samples of elements would be cheaper, but miss writes: fused optimizers, `.data`, numpy and other
processes do not increment `Tensor._version`.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor

#: memcmp(address, address, bytes) -> 0 if the bytes are equal. Releases the GIL.
_memcmp: Any = (ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int
#: Tensors of at most this many bytes are joined and compared at once, which is faster than a call for each.
_SMALL = 16384
#: Tensors of at least this many bytes are compared by all of torch's threads: 44 MB take 2.2 instead of 7.3 ms on 16 cores.
_PARALLEL = 2**20
#: A tensor that spans more than this multiple of its size is not copied: most of the memory belongs to other tensors.
_SPARSE = 2


class TensorPlace(NamedTuple):
    """The memory of a tensor and how it is read: tensors at equal places have the same elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        """The number of bytes from the start of the first element to the end of the last one."""
        return spanned_elements(self.shape, self.strides) * self.dtype.itemsize


def spanned_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements of memory from the first to the last element of a tensor."""
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return 0 if 0 in shape else last + 1


def place_of(tensor: Tensor) -> TensorPlace | None:
    """The place of `tensor`; None for tensors without plain memory of their own.

    These are subclasses, tensors in a transformation of functorch, sparse and empty tensors, and tensors with lazy
    negation or conjugation.
    """
    if type(tensor) not in PLAIN:
        return None
    try:
        address = tensor.data_ptr()
        if not address or tensor.is_neg() or tensor.is_conj():
            return None
        return TensorPlace(address, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    except (RuntimeError, NotImplementedError):
        return None


def copied(place: TensorPlace) -> Tensor | None:
    """A copy, with the same shape, strides and bytes, of the living tensor at `place`.

    None if the tensor is not on the CPU, or if its elements are spread over too much memory.
    """
    size, elements = place.bytes, math.prod(place.shape)
    if place.device.type != "cpu" or not size or size > _SPARSE * elements * place.dtype.itemsize:
        return None
    flat = torch.empty(size // place.dtype.itemsize, dtype=place.dtype, device="cpu")
    ctypes.memmove(flat.data_ptr(), place.address, size)
    return flat.as_strided(place.shape, place.strides)


class MemoryComparison:
    """Compares the tensors at places on the CPU with their copies."""

    def __init__(self, places: Sequence[TensorPlace], copies: Sequence[Tensor]) -> None:
        """Keeps `copies`, which `copied` made of the tensors at `places`."""
        self._copies = tuple(copies)
        small, self._large = list[Any](), list[tuple[int, int, int]]()
        self._largest = list[tuple[Tensor, Tensor]]()
        joined = list[bytes]()
        for place, copy in zip(places, copies, strict=True):
            size = place.bytes
            if size >= _PARALLEL and not size % torch.int64.itemsize:
                self._largest.append((_words(place.address, size), _words(copy.data_ptr(), size)))
            elif size > _SMALL:
                self._large.append((place.address, copy.data_ptr(), size))
            else:
                small.append((ctypes.c_uint8 * size).from_address(place.address))
                joined.append(ctypes.string_at(copy.data_ptr(), size))
        self._small, self._joined = small, b"".join(joined)

    def is_equal(self) -> bool:
        """Whether all bytes are the same. The tensors at the places must be alive."""
        if b"".join(self._small) != self._joined:
            return False
        return not any(_memcmp(*each) for each in self._large) and all(
            torch.equal(*each) for each in self._largest
        )


def _words(address: int, size: int) -> Tensor:
    """Memory as a tensor of integers, which does not keep it alive."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.int64)
