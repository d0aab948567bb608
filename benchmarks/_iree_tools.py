"""The commands of the installed IREE runtime, with the same inputs as our own measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dispatch_profiler.operations import Distribution, Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate, Vmfb
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime import find_runtime_tools

BIN = Path(sys.executable).parent


class Tools:
    """The commands of the installed runtime; they read our operands from files."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._run, self._benchmark = find_runtime_tools(BIN)
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}

    def operands(self, operation: Operation) -> list[str]:
        """`--input=` for each operand and the result's memory."""
        arrays = [*draw(operation, Distribution.REALS, 1), np.zeros(operation.result.shape, np.float32)]
        found = []
        for tensor, array in zip((*operation.operands, operation.result), arrays, strict=True):
            path = self._folder / f"{operation.name}_{tensor.name}.npy"
            if not path.exists():
                np.save(path, array)
            found.append(f"--input=@{path}")
        return found

    def verified(self, candidate: Candidate) -> bool:
        """Whether iree-run-module computes what numpy does."""
        output = self._folder / "output.npy"
        self._call(self._run, candidate, candidate.verify, f"--output=@{output}")
        lhs, rhs = draw(candidate.dispatch.operation, Distribution.REALS, 1)
        return np.allclose(np.load(output), lhs @ rhs, rtol=1e-3, atol=1e-2)

    def times_ms(self, candidate: Candidate, repetitions: int, seconds: float) -> list[float]:
        """Milliseconds per execution, for each repetition of `seconds` of iree-benchmark-module."""
        options = ["--benchmark_format=json", f"--benchmark_repetitions={repetitions}"]
        options += [f"--batch_size={candidate.repeat}", f"--benchmark_min_time={seconds}s"]
        output = self._call(self._benchmark, candidate, candidate.profile, *options)
        scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
        rows = json.loads(output[output.index("{") :])["benchmarks"]
        return [float(r["real_time"]) * scale[r["time_unit"]] for r in rows if r["run_type"] == "iteration"]

    def _call(self, tool: Path, candidate: Candidate, vmfb: Vmfb | None, *options: str) -> str:
        assert vmfb is not None
        path = self._folder / f"{vmfb.sha256}.vmfb"
        if not path.exists():
            path.write_bytes(vmfb.load())
        command = [tool, f"--module={path}", "--device=local-task", f"--function={candidate.dispatch.name}"]
        # As in our own process: a spinning caller does not keep a worker from its core.
        done = subprocess.run(
            ["chrt", "--batch", "0", *command, *self.operands(candidate.dispatch.operation), *options],
            capture_output=True, text=True, check=True, env=self._environment,
        )  # fmt: skip
        return done.stdout
