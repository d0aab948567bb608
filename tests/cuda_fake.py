"""libcuda without a GPU: its functions, as far as launches use them, on memory of this process.

It executes what is launched at once. Kernels are Python functions of addresses and constants, by their names.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

CONTEXT = 0xC0DE
NAMES = {1: b"CUDA_ERROR_INVALID_VALUE", 218: b"CUDA_ERROR_INVALID_PTX", 500: b"CUDA_ERROR_NOT_FOUND"}

#: (addresses, constants, launch: grid, block, shared bytes and stream)
Kernel = Callable[[list[int], list[int], SimpleNamespace], None]


class FakeCuda:
    """`library` stands for libcuda. `log` has what was called, in order."""

    def __init__(self, kernels: Mapping[str, tuple[int, int, Kernel]], without: str = "") -> None:
        """`kernels`: name -> (number of addresses, number of constants, function). The driver lacks `without`."""
        self.kernels = dict(kernels)
        self.names: dict[int, str] = {}
        self.log: list[Any] = []
        self.statuses: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.modules: list[bytes] = []
        self._thread = threading.local()
        functions = {name: getattr(self, name) for name in dir(type(self)) if name.startswith("cu")}
        wrapped = {
            name: self._counted(name, function) for name, function in functions.items() if name != without
        }
        self.library = SimpleNamespace(**wrapped)

    @property
    def contexts(self) -> list[int]:
        """The stack of contexts of this thread."""
        if not hasattr(self._thread, "contexts"):
            self._thread.contexts = []
        found: list[int] = self._thread.contexts
        return found

    def _counted(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            return self.statuses.get(name, 0) or function(*arguments) or 0

        return call

    # -- devices and modules ------------------------------------------------------------------

    def cuGetErrorName(self, status: int, name: Any) -> None:
        name._obj.value = NAMES.get(status)

    def cuDeviceGet(self, device: Any, ordinal: int) -> None:
        device._obj.value = ordinal

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = CONTEXT + device.value

    def cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = self.contexts[-1] if self.contexts else None

    def cuCtxPushCurrent_v2(self, context: int) -> None:
        self.contexts.append(context)
        self.log.append("push")

    def cuCtxPopCurrent_v2(self, context: Any) -> None:
        context._obj.value = self.contexts.pop()
        self.log.append("pop")

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        self.log.append(f"capture mode {mode._obj.value}")
        mode._obj.value = 0

    def cuModuleLoadDataEx(self, module: Any, data: bytes, *_: Any) -> None:
        assert data.endswith(b"\0")
        self.modules.append(data[:-1])
        module._obj.value = len(self.modules)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        if name.decode() not in self.kernels or name not in self.modules[module.value - 1]:
            return 500
        function._obj.value = 1000 + len(self.names)
        self.names[function._obj.value] = name.decode()
        return 0

    def cuFuncSetAttribute(self, function: Any, which: int, value: int) -> None:
        assert which == 8
        self.shared[self.names[function.value]] = value

    # -- what is launched ---------------------------------------------------------------------

    def _check_context(self) -> None:
        assert self.contexts[-1] == CONTEXT

    def cuLaunchKernelEx(self, config: Any, function: int, parameters: Any, extra: None) -> None:
        self._check_context()
        name = self.names[function]
        pointers, constants, run = self.kernels[name]
        given = config._obj
        addresses = [ctypes.c_uint64.from_address(each).value for each in parameters[:pointers]]
        values = [
            ctypes.c_uint32.from_address(each).value for each in parameters[pointers : pointers + constants]
        ]
        launch = SimpleNamespace(
            grid=(given.grid_x, given.grid_y, given.grid_z),
            block=(given.block_x, given.block_y, given.block_z),
            shared=given.shared_bytes,
            stream=given.stream or 0,
        )
        self.log.append((name, launch.stream))
        run(addresses, values, launch)

    def _fill(self, address: int, pattern: int, count: int, stream: int, width: int) -> None:
        self._check_context()
        self.log.append((f"fill {width}", stream))
        ctypes.memmove(address, pattern.to_bytes(width, "little") * count, width * count)

    def cuMemsetD8Async(self, address: int, pattern: int, count: int, stream: int) -> None:
        self._fill(address, pattern, count, stream, 1)

    def cuMemsetD16Async(self, address: int, pattern: int, count: int, stream: int) -> None:
        self._fill(address, pattern, count, stream, 2)

    def cuMemsetD32Async(self, address: int, pattern: int, count: int, stream: int) -> None:
        self._fill(address, pattern, count, stream, 4)

    def cuMemcpyDtoDAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:
        self._check_context()
        self.log.append(("copy", stream))
        ctypes.memmove(target, source, count)
