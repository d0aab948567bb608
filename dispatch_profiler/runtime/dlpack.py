"""Exchange of tensors with other libraries without copies, on the CPU.

IREE imports dense row-major tensors whose memory is aligned to 64 bytes. PyTorch aligns its tensors like
this; of numpy's small arrays, one in four is aligned. For unaligned tensors, errors say what to do.
"""

from __future__ import annotations

import re
from typing import Any

from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime._base import RunError
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import HAL_TYPES, IREE_ERRORS, IreeBuffer, run_error

#: kDLCPU of dlpack.h, as `__dlpack_device__` returns it.
_CPU = (1, 0)
_NAMES = {int(hal): name for name, hal in HAL_TYPES.items()}


def import_tensor(device: IreeDevice, tensor: Any) -> IreeBuffer:
    """A buffer of `device` that shares the memory of `tensor` (torch, numpy, or anything with `__dlpack__`).

    Its shape is the tensor's. Writes to one are visible in the other, and the buffer keeps the tensor alive.
    Raises RunError if the device is not the CPU, or if the tensor is not dense, not row major, not aligned
    to 64 bytes, read-only, or of an unsupported type.
    """
    _check_local(device)
    if not hasattr(tensor, "__dlpack__"):
        raise RunError(f"a {type(tensor).__name__} has no __dlpack__: pass a numpy array or a torch tensor")
    if getattr(tensor, "requires_grad", False):
        raise RunError("the tensor requires grad: pass tensor.detach()")
    try:
        view = device.hal.from_dlpack_capsule(tensor.__dlpack__())
    except (*IREE_ERRORS, BufferError, TypeError) as error:
        raise _import_error(error) from error
    name = _NAMES.get(int(view.element_type))
    if name is None:
        raise RunError(
            f"{getattr(tensor, 'dtype', 'its type')} is not a supported element type: convert the tensor"
        )
    return IreeBuffer(device.hal, view, tuple(view.shape), ELEMENT_TYPES[name], owner=tensor)


class ExportedTensor:
    """A buffer for `numpy.from_dlpack` and `torch.from_dlpack`, without a copy.

    Raises RunError if the device is not the CPU, and when it is imported if DLPack lacks its type.
    """

    def __init__(self, device: IreeDevice, buffer: IreeBuffer) -> None:
        _check_local(device)
        self._device = device
        self._buffer = buffer

    def __dlpack__(self, **_: object) -> object:
        try:
            return self._device.hal.create_dlpack_capsule(self._buffer.view, *_CPU)
        except IREE_ERRORS as error:
            raise run_error(f"exporting {self._buffer.type.name} {self._buffer.shape}", error) from error

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def _check_local(device: IreeDevice) -> None:
    if not device.uri.is_local:
        raise RunError(
            f"tensors are shared on the CPU only, but the device is {device.uri}: copy with put and read"
        )


def _import_error(error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if "must be aligned" in text:
        return RunError(
            "the tensor's memory is not aligned to 64 bytes: copy it with device.put, or clone it"
        )
    if "strided" in text:
        return RunError("the tensor is not dense and row major: pass a contiguous copy")
    if "readonly" in text:
        return RunError("the array is read-only: pass a copy")
    if re.search(r"Unsupported dtype|DLPack only supports|unsupported", text, re.IGNORECASE):
        return RunError(f"DLPack has no such element type: copy it with device.put ({text[:200]})")
    return run_error("importing a tensor", error)
