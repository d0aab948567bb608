"""The runtime of a custom IREE build, through its commands (`--build-dir`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dispatch_profiler.files.regular import find_tools
from dispatch_profiler.operations import ElementType
from dispatch_profiler.runtime._base import Arguments, RunError, checked
from dispatch_profiler.runtime.device_uri import DeviceUri

_COMMANDS = ("iree-run-module", "iree-benchmark-module")
_PREFIX = "dispatch_profiler."


def find_runtime_tools(build_dir: Path) -> tuple[Path, Path]:
    """`iree-run-module` and `iree-benchmark-module` of a build. UsageError names what is missing."""
    run, benchmark = find_tools(build_dir, _COMMANDS)
    return run, benchmark


class ToolDevice:
    """A device that starts a command for each run. Slower than `IreeDevice`; only for custom IREE builds."""

    #: Unknown: a command starts with cold caches and cannot rotate over operands.
    cache_bytes = 0

    def __init__(self, uri: DeviceUri, build_dir: Path) -> None:
        self.uri = uri
        self.run_module, self.benchmark_module = find_runtime_tools(build_dir)

    def load(self, vmfb: bytes) -> ToolProgram:
        """See `Device.load`; the commands read the vmfb only when they run."""
        return ToolProgram(self, vmfb)

    def allocate(self, shape: Sequence[int], type_: ElementType) -> ToolBuffer:
        """See `Device.allocate`."""
        return self.put(np.zeros(tuple(shape), type_.dtype), type_)

    def put(self, array: np.ndarray, type_: ElementType) -> ToolBuffer:
        """See `Device.put`."""
        buffer = ToolBuffer(array.shape, type_)
        buffer.write(array)
        return buffer


class ToolBuffer:
    """See `Buffer`: a raw file, in which form the commands accept bf16 and f8."""

    def __init__(self, shape: tuple[int, ...], type_: ElementType) -> None:
        self.shape = shape
        self.type = type_
        self.path = _scratch_folder(self) / "tensor.bin"

    @property
    def argument(self) -> str:
        """`4x4xbf16=@FILE`, in the form of the commands."""
        return f"{'x'.join(map(str, (*self.shape, self.type.name)))}=@{self.path}"

    def write(self, array: np.ndarray) -> None:
        """See `Buffer.write`."""
        self.path.write_bytes(checked(array, self.shape, self.type).tobytes())

    def read(self) -> np.ndarray:
        """See `Buffer.read`."""
        return np.frombuffer(self.path.read_bytes(), self.type.dtype).reshape(self.shape)

    def copy_from(self, source: ToolBuffer) -> None:
        """See `Buffer.copy_from`."""
        shutil.copyfile(source.path, self.path)


class ToolProgram:
    """A vmfb in a temporary folder."""

    def __init__(self, device: ToolDevice, vmfb: bytes) -> None:
        self._device = device
        self.path = _scratch_folder(self) / "module.vmfb"
        self.path.write_bytes(vmfb)

    def bind(self, function: str, *arguments: Arguments) -> ToolCall:
        """See `Program.bind`."""
        return ToolCall(self._device, self, function, arguments[0])


class ToolCall:
    """See `Call`."""

    def __init__(self, device: ToolDevice, program: ToolProgram, function: str, arguments: Arguments) -> None:
        self._device = device
        self._program = program
        self._results = arguments.results
        self._command = [
            f"--module={program.path}",
            f"--device={device.uri}",
            f"--function={function}",
            *(f"--input={each.argument}" for each in (*arguments.operands, *arguments.results)),
        ]

    @property
    def now(self) -> None:
        """See `Call.now`: none, because the time that passes is mostly the tool's start-up."""

    def invoke(self) -> None:
        """See `Call.invoke`."""
        outputs = (f"--output=@{result.path}" for result in self._results)
        _call([str(self._device.run_module), *self._command, *outputs])

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        options = ["--benchmark_format=json", f"--benchmark_min_time={calls}x"]
        output = _call([str(self._device.benchmark_module), *self._command, *options])
        try:
            row = json.loads(output[output.index("{") :])["benchmarks"][0]
            return float(row["real_time"]) * _SECONDS[row["time_unit"]] * calls
        except (ValueError, LookupError) as error:
            raise RunError(f"unexpected output of iree-benchmark-module: {output[:200]!r}") from error


def _scratch_folder(owner: object) -> Path:
    """A folder that lives as long as `owner`."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise RunError(f"{Path(command[0]).name}: {lines[0][:300]}")
    return done.stdout
