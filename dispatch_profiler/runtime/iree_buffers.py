"""Buffers of IREE devices: mapped if the host can access them, otherwise copied by the device.

CUDA device memory cannot be mapped. A buffer allocated for mapping is managed memory, whose pages migrate
between host and GPU: unsuitable for operands that are timed.
"""

from __future__ import annotations

import re
from typing import Any

import iree.runtime as rt
import numpy as np

from dispatch_profiler.errors import WorkerCrashed, WorkerOutOfMemory
from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime._base import RunError, checked

_HOST_VISIBLE = int(rt.MemoryType.HOST_VISIBLE)
#: Errors that IREE raises.
IREE_ERRORS = (ValueError, RuntimeError, IndexError, MemoryError)

HAL_TYPES = {
    "f64": rt.HalElementType.FLOAT_64,
    "f32": rt.HalElementType.FLOAT_32,
    "f16": rt.HalElementType.FLOAT_16,
    "bf16": rt.HalElementType.BFLOAT_16,
    "f8E4M3FN": rt.HalElementType.FLOAT_8_E4M3_FN,
    "i8": rt.HalElementType.SINT_8,
    "i32": rt.HalElementType.SINT_32,
}

#: After one of these, this process can run nothing more (CUDA Driver API, "CUresult").
_FATAL = re.compile(
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC"
    r"|HARDWARE_STACK_ERROR|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|ECC_UNCORRECTABLE|CONTEXT_IS_DESTROYED)"
)

#: IREE's status of everything that waits for an operation of the device that failed. The cause may follow only with
#: the next use of the device, which would then be blamed for it.
_ABORTED = "ABORTED;"


def run_error(what: str, error: Exception) -> Exception:
    """The error of this package for an error that IREE raised during `what`."""
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        return WorkerOutOfMemory(f"out of memory while {what}")
    fatal = _FATAL.search(text)
    if fatal:
        return WorkerCrashed(f"{what} broke the device's context: {fatal[0]}")
    if _ABORTED in text:
        return WorkerCrashed(f"{what} broke the device's queue: {text[:300]}")
    rejected = driver_rejection(text)
    if rejected:
        return RunError(f"{what} failed: {rejected}")
    foreign = re.search(r"INCOMPATIBLE; .*?#hal\.executable\.target<\"([^\"]+)\", \"([^\"]+)\"", text)
    if foreign:
        return RunError(f"{what} failed: it is {foreign[1]} code ({foreign[2]}) for another device")
    return RunError(f"{what} failed: {text[:300]}")


class IreeBuffer:
    """See `Buffer`. `view` is IREE's buffer view."""

    def __init__(self, device: Any, view: Any, shape: tuple[int, ...], type_: ElementType) -> None:
        self.view = view
        self.shape = shape
        self.type = type_
        self._device = device
        self._buffer = view.get_buffer()
        self._is_visible = bool(self._buffer.memory_type() & _HOST_VISIBLE)
        #: Host memory and its mapping, which must live as long as arrays that were read from it.
        self._mapped: tuple[Any, Any] | None = None

    def write(self, array: np.ndarray) -> None:
        """See `Buffer.write`."""
        dense = checked(array, self.shape, self.type)
        try:
            self._bytes()[:] = dense.reshape(-1).view(np.uint8)
            if not self._is_visible:
                self._copy(self._host()[0], self._buffer)
        except IREE_ERRORS as error:
            raise run_error("writing a buffer", error) from error

    def read(self) -> np.ndarray:
        """See `Buffer.read`."""
        try:
            if not self._is_visible:
                self._copy(self._buffer, self._host()[0])
            return self._bytes().copy().view(self.type.dtype).reshape(self.shape)
        except IREE_ERRORS as error:
            raise run_error("reading a buffer", error) from error

    def copy_from(self, source: IreeBuffer) -> None:
        """See `Buffer.copy_from`."""
        if (source.shape, source.type) != (self.shape, self.type):
            raise RunError(
                f"expected {self.type.name} {self.shape}, but got {source.type.name} {source.shape}"
            )
        try:
            if self._is_visible and source._is_visible:
                self._bytes()[:] = source._bytes()
            else:
                self._copy(source._buffer, self._buffer)
        except IREE_ERRORS as error:
            raise run_error("copying a buffer", error) from error

    def _host(self) -> tuple[Any, Any]:
        """The buffer if it is visible to the host, else staging memory, with its mapping."""
        if self._mapped is None:
            buffer = self._buffer if self._is_visible else self._staging()
            self._mapped = buffer, buffer.map()
        return self._mapped

    def _staging(self) -> Any:
        return self._device.allocator.allocate_buffer(
            rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            rt.BufferUsage.TRANSFER | rt.BufferUsage.MAPPING,
            self._buffer.byte_length(),
        )

    def _bytes(self) -> np.ndarray:
        buffer, mapping = self._host()
        found = np.asarray(mapping.asarray([buffer.byte_length()], np.dtype(np.uint8)))
        # A buffer may be longer than its tensor.
        return found[: int(np.prod(self.shape, dtype=np.int64)) * self.type.bytes]

    def _copy(self, source: Any, target: Any) -> None:
        done = self._device.create_semaphore(0)
        start, end = (rt.HalFence.create_at(done, at) for at in (0, 1))
        self._device.queue_copy(source, target, wait_semaphores=start, signal_semaphores=end)
        end.wait()


# -- driver errors ---------------------------------------------------------------------------------

# Rejections of kernels by a GPU's driver, as messages that say what to do.


def driver_rejection(text: str) -> str:
    """Why the CUDA driver rejected an executable, from the text of IREE's error; empty for other errors.

    `...Unsupported .version 9.9; current version is '9.0'...` -> a sentence with both versions.
    """
    version = re.search(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'", text)
    if version:
        return f"the kernel is PTX {version[1]}, the driver supports up to {version[2]}: update the driver"
    if "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in text:
        return "the kernel's PTX version is newer than the driver supports: update the driver"
    shared = re.search(r"requires (\d+)B of shared memory and exceeds the device maximum of (\d+)B", text)
    if shared:
        return f"the kernel needs {shared[1]} B of shared memory, but this device has {shared[2]}"
    if "CUDA_ERROR_NOT_FOUND" in text:
        return "the object has no kernel with the name that is launched"
    invalid = re.search(r"CUDA_ERROR_(INVALID_PTX|NO_BINARY_FOR_GPU|INVALID_IMAGE)", text)
    if invalid:
        reason = re.search(r"error\s*:\s*([^;]+?)(?: ptxas application|;|$)", text)
        detail = f": {reason[1].strip()}" if reason else ""
        return f"the kernel is for another GPU ({invalid[1]}){detail}"
    return ""
