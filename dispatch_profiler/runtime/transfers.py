"""Bytes of a buffer as the host sees them: mapped where the host can, else copied by the device.

On CUDA a buffer of the device's own memory cannot be mapped. One that is allocated to be mapped is
managed memory, whose pages wander between host and GPU: no place for operands that are timed.
"""

from __future__ import annotations

from typing import Any

import iree.runtime as rt
import numpy as np

_HOST_VISIBLE = int(rt.MemoryType.HOST_VISIBLE)


class ResultMemory:
    """The bytes of a result's buffer, behind `view`, which hold `before` whenever they are `reset`.

    Raises what IREE raises if staging memory cannot be had.
    """

    def __init__(self, device: Any, view: Any, before: np.ndarray) -> None:
        self._device = device
        self._buffer = view.get_buffer()
        self._is_visible = bool(self._buffer.memory_type() & _HOST_VISIBLE)
        self._host = self._buffer if self._is_visible else self._staging()
        self._mapping = self._host.map()  # must live as long as what was read from it
        self._before = np.ascontiguousarray(before).reshape(-1).view(np.uint8)
        if not self._is_visible:
            # Copied within the machine once, and from there by the device each time.
            self._before_on_device = self._staging()
            mapping = self._before_on_device.map()
            _bytes_of(mapping, self._before_on_device)[: self._before.size] = self._before

    def _staging(self) -> Any:
        return self._device.allocator.allocate_buffer(
            rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            rt.BufferUsage.TRANSFER | rt.BufferUsage.MAPPING,
            self._buffer.byte_length(),
        )

    @property
    def _bytes(self) -> np.ndarray:
        # A staging buffer may be longer than what it stands for.
        return _bytes_of(self._mapping, self._host)[: self._buffer.byte_length()]

    def reset(self) -> None:
        """Put what it held before a run there again."""
        if self._is_visible:
            self._bytes[:] = self._before
        else:
            self._copy(self._before_on_device, self._buffer)

    def read(self) -> np.ndarray:
        """A copy of the bytes that are there."""
        if not self._is_visible:
            self._copy(self._buffer, self._host)
        return self._bytes.copy()

    def _copy(self, source: Any, target: Any) -> None:
        done = self._device.create_semaphore(0)
        start, end = (rt.HalFence.create_at(done, at) for at in (0, 1))
        self._device.queue_copy(source, target, wait_semaphores=start, signal_semaphores=end)
        end.wait()


def _bytes_of(mapping: Any, buffer: Any) -> np.ndarray:
    return np.asarray(mapping.asarray([buffer.byte_length()], np.dtype(np.uint8)))
