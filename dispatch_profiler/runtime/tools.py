"""The runtime of someone's own IREE build, through its commands (`--build-dir`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dispatch_profiler.files import find_tools
from dispatch_profiler.operations import Operation, Tensor
from dispatch_profiler.runtime._base import Operands, RunError, poison

_COMMANDS = ("iree-run-module", "iree-benchmark-module")
_PREFIX = "dispatch_profiler."


def find_runtime_tools(build_dir: Path) -> tuple[Path, Path]:
    """`iree-run-module` and `iree-benchmark-module` of a build. UsageError names what is missing."""
    run, benchmark = find_tools(build_dir, _COMMANDS)
    return run, benchmark


class ToolDevice:
    """A device that spawns a command for each run. Slower than `IreeDevice`, for its own IREE only."""

    #: A command that is spawned finds no operands in the caches, and can be given no others in turn.
    cache_bytes = 0

    def __init__(self, uri: str, build_dir: Path) -> None:
        self.uri = uri
        self.run_module, self.benchmark_module = find_runtime_tools(build_dir)

    def load(self, vmfb: bytes) -> ToolProgram:
        """See `Device.load`; the commands look at the vmfb only when they run."""
        return ToolProgram(self, vmfb)

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Device.put`. They travel as raw files, which is how the commands take bf16 and f8."""
        tensors = (*operation.operands, *operation.results)
        arrays = [*inputs, *(poison(result.type, result.shape) for result in operation.results)]
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        operands = Operands(
            operation, tuple(_raw_file(folder, *each) for each in zip(tensors, arrays, strict=True))
        )
        weakref.finalize(operands, shutil.rmtree, folder, ignore_errors=True)
        return operands


class ToolProgram:
    """A vmfb in a temporary folder."""

    def __init__(self, device: ToolDevice, vmfb: bytes) -> None:
        self._device = device
        self.path = _scratch_folder(self) / "module.vmfb"
        self.path.write_bytes(vmfb)

    def bind(self, function: str, *operands: Operands) -> ToolCall:
        """See `Program.bind`."""
        return ToolCall(self._device, self, function, operands[0])


class ToolCall:
    """See `Call`."""

    def __init__(self, device: ToolDevice, program: ToolProgram, function: str, operands: Operands) -> None:
        self._device = device
        self._program = program
        self._operands = operands
        self._folder = _scratch_folder(self)
        self._arguments = [
            f"--module={program.path}",
            f"--device={device.uri}",
            f"--function={function}",
            *(f"--input={handle}" for handle in operands.handles),
        ]

    @property
    def now(self) -> None:
        """See `Call.now`: what we wait for is mostly the tool's own start."""

    def run(self) -> tuple[np.ndarray, ...]:
        """See `Call.run`."""
        results = self._operands.operation.results
        outputs = [self._folder / f"{result.name}.bin" for result in results]
        _call(
            [str(self._device.run_module), *self._arguments, *(f"--output=@{output}" for output in outputs)]
        )
        return tuple(
            np.frombuffer(output.read_bytes(), result.type.dtype).reshape(result.shape)
            for output, result in zip(outputs, results, strict=True)
        )

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        options = ["--benchmark_format=json", f"--benchmark_min_time={calls}x"]
        said = _call([str(self._device.benchmark_module), *self._arguments, *options])
        try:
            row = json.loads(said[said.index("{") :])["benchmarks"][0]
            return float(row["real_time"]) * _SECONDS[row["time_unit"]] * calls
        except (ValueError, LookupError) as error:
            raise RunError(f"iree-benchmark-module answered {said[:200]!r}") from error


def _raw_file(folder: Path, tensor: Tensor, array: np.ndarray) -> str:
    """`4x4xbf16=@FILE`, as the commands take it."""
    path = folder / f"{tensor.name}.bin"
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return f"{'x'.join(map(str, tensor.shape))}x{tensor.type.name}=@{path}"


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
