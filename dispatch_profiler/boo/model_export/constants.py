"""The operands of kernels that follow from weights, as bytes in one block of memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.fusion.execute.calls import flat_channels
from dispatch_profiler.boo.fusion.spec import OperandSource
from dispatch_profiler.boo.interface import empty_aligned
from dispatch_profiler.boo.weights.derivations import BatchNorm
from dispatch_profiler.errors import ToolError
from dispatch_profiler.library.c_export.functions import ALIGNMENT, CKernel

#: A kernel and the bytes of its weight -> the bytes of the packed weight.
Pack = Callable[[CKernel, bytes], bytes]


class ConstantBlock:
    """Constants at offsets that are multiples of the alignment; equal ones are kept once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._offsets: dict[bytes, int] = {}
        #: The bytes of the block.
        self.size = 0

    def add(self, data: bytes) -> int:
        """The offset of `data`."""
        if data not in self._offsets:
            self._offsets[data] = self.size
            padding = -len(data) % ALIGNMENT
            self._parts += [data, bytes(padding)]
            self.size += len(data) + padding
        return self._offsets[data]

    @property
    def data(self) -> bytes:
        """The block."""
        return b"".join(self._parts)


def operand_bytes(source: OperandSource, tensors: Sequence[Any]) -> bytes:
    """An operand that follows from weights, in the order of the kernel's memory. An absent weight is None."""
    if source.reading in ("scale", "shift"):
        operand = BatchNorm.of(tensors, source.eps).vector
    elif source.reading in ("rows", "bytes"):
        operand = tensors[0].reshape(-1)
    else:
        operand = flat_channels(tensors[0])
    whole = operand.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(whole.view(torch.uint8).numpy())


def packer(library: Path) -> Pack:
    """Packs weights with the functions of `library`, a shared library of the kernels."""
    functions = ctypes.CDLL(str(library))

    def pack(kernel: CKernel, weight: bytes) -> bytes:
        assert kernel.pack is not None
        given, packed = (empty_aligned(size, np.uint8) for size in (len(weight), kernel.packed_bytes))
        given[:] = np.frombuffer(weight, np.uint8)
        packed[:] = 0  # what packing leaves out
        workspace = empty_aligned(kernel.pack.workspace, np.uint8)
        memory = [given, packed, *([workspace] if kernel.pack.workspace else [])]
        pointers = [ctypes.c_void_p(each.ctypes.data) for each in memory]
        status = getattr(functions, kernel.pack.name)(*pointers, None, None)
        if status:
            raise ToolError(f"{kernel.pack.name} failed with status {status}")
        return packed.tobytes()

    return pack
