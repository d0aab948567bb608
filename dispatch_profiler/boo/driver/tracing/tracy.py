"""Traces a command with Tracy, in a subprocess with IREE's traced runtime, beside `iree-tracy-capture`.

IREE's wheels contain the traced runtime and `iree-tracy-capture`. `tracy-csvexport`, which reads traces, must be built
from Tracy's sources; without it, only the trace is written, for Tracy's viewer.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.command import folder
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError

#: Variable that selects the runtime that `import iree.runtime` loads.
RUNTIME = "IREE_PY_RUNTIME"
_TRACED = "tracy"
#: Number of traced launches without --iter.
_LAUNCHES = 100
#: Time limits for the traced process, and then for writing its trace.
_RUN_SECONDS = 600.0
_WRITE_SECONDS = 60.0
#: Part of the names of the zones of kernels.
_KERNEL = "_dispatch_"
#: Column of `tracy-csvexport --gpu`, in nanoseconds.
_GPU_TIME = "GPU execution time"
_STATIC_TLS = "cannot allocate memory in static TLS block"
_TUNABLES = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"
_BUILD = (
    "build it from https://github.com/wolfpld/tracy, in the folder csvexport: cmake -B build -S . "
    "-DCMAKE_BUILD_TYPE=Release && cmake --build build --parallel; then add build to PATH"
)


@dataclass(frozen=True)
class Zone:
    """A kernel in a trace: how often it ran, and its times in microseconds."""

    name: str
    count: int
    min: float
    max: float
    mean: float
    stddev: float

    def __str__(self) -> str:
        return (
            f"{self.name}: min={self.min:.2f}us max={self.max:.2f}us mean={self.mean:.2f}us "
            f"stddev={self.stddev:.2f}us num_dispatches={self.count}"
        )


def trace_folder(option: str | None, environment: MutableMapping[str, str]) -> Path | None:
    """The folder of the traces; None if tracing was not requested.

    Removes `IREE_PY_RUNTIME=tracy` from `environment`: only the traced subprocesses get it, since tracing would slow
    down the launches that this process times. Raises MissingDependency without a traced runtime, and UsageError if the
    path is not a folder.
    """
    if environment.get(RUNTIME) == _TRACED:
        del environment[RUNTIME]
        option = option or "tracy"
    if option is None:
        return None
    capture_tool()
    path = folder(option)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--tracy: {path} is not a folder", hint="name a folder for the traces")
    return path


def capture_tool() -> Path:
    """`iree-tracy-capture` of the installed runtime; other builds may not understand its traces.

    Raises MissingDependency.
    """
    spec = find_spec("iree._runtime_libs_tracy")
    for place in (spec.submodule_search_locations or []) if spec else []:
        tool = Path(place) / "iree-tracy-capture"
        if tool.is_file():
            return tool
    raise MissingDependency(
        "this build of iree-base-runtime has no Tracy runtime and no iree-tracy-capture",
        hint="install the wheel: python -m pip install iree-base-runtime",
    )


def trace(command: str, device: str, timing: Timing, path: Path) -> Iterator[str]:
    """Trace the launches of `command` into the file `path`, and yield lines that describe the trace.

    Raises ToolError if the traced process or the capture fails.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    _capture(command, device, timing.launches or _LAUNCHES, path)
    yield f"trace: {path}"
    export = shutil.which("tracy-csvexport")
    if export is None:
        yield f"tracy-csvexport is not on PATH, so kernel times are only in the trace; {_BUILD}"
        return
    done = subprocess.run(
        [export, *(["--gpu"] if device != "cpu" else []), str(path)],
        capture_output=True, text=True, errors="replace", timeout=_RUN_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ToolError(
            f"tracy-csvexport failed: {_last_line(done.stderr)}",
            hint=f"use the version of Tracy that IREE uses; the trace is {path}",
        )
    zones = parse_zones(done.stdout)
    yield from map(str, zones)
    if not zones:
        yield "the trace has no kernels"


def parse_zones(text: str) -> tuple[Zone, ...]:
    """The kernels in CSV from `tracy-csvexport`, which has a row for each zone, or with `--gpu` for each execution.

    Raises ToolError if a column is missing.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    by_kernel: dict[str, list[float]] = {}
    zones = []
    try:
        for row in rows:
            if _KERNEL not in row["name"]:
                continue
            if _GPU_TIME in row:
                by_kernel.setdefault(row["name"], []).append(float(row[_GPU_TIME]) / 1e3)
            else:
                micro = (float(row[f"{column}_ns"]) / 1e3 for column in ("min", "max", "mean", "std"))
                zones.append(Zone(row["name"], int(row["counts"]), *micro))
    except (KeyError, TypeError, ValueError) as error:
        raise ToolError(
            "tracy-csvexport wrote a table without name, counts, min_ns, max_ns, mean_ns and std_ns",
            hint="use the version of Tracy that IREE uses",
        ) from error
    for name, times in by_kernel.items():
        stddev = statistics.stdev(times) if len(times) > 1 else 0.0
        zones.append(Zone(name, len(times), min(times), max(times), statistics.fmean(times), stddev))
    return tuple(zones)


def _capture(command: str, device: str, launches: int, path: Path) -> None:
    """Run the command beside the capture, both on a free port of this machine."""
    port = str(_free_port())
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        capture = stack.enter_context(
            _process([str(capture_tool()), "-f", "-o", str(path), "-a", "127.0.0.1", "-p", port], work, {})
        )
        # With TRACY_NO_EXIT, the process waits until its trace has been sent. The current directory is empty: `-m`
        # must not import from it.
        package = Path(startup.__file__).absolute().parent.parent
        search_path = startup.absolute_entries(f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{package}")
        own = {RUNTIME: _TRACED, "TRACY_PORT": port, "TRACY_NO_EXIT": "1", "PYTHONPATH": search_path}
        traced = stack.enter_context(
            _process(
                [
                    sys.executable,
                    "-m",
                    "dispatch_profiler.boo.driver.tracing.traced",
                    device,
                    str(launches),
                    command,
                ],
                work,
                own,
            )
        )
        text = _wait(traced, _RUN_SECONDS)
        if traced.returncode != 0:
            hint = f"export {_TUNABLES}, and run the command again" if _STATIC_TLS in text else ""
            raise ToolError(f"the traced process failed: {_last_line(text)}", hint=hint)
        text = _wait(capture, _WRITE_SECONDS)
        if capture.returncode != 0 or not path.is_file():
            raise ToolError(f"iree-tracy-capture failed: {_last_line(text)}")


@contextlib.contextmanager
def _process(arguments: list[str], work: str, own: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end of the block. Its output and standard error go to a pipe."""
    process = subprocess.Popen(
        arguments, cwd=work, env={**os.environ, **own}, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        _kill(process)
        process.communicate()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, which would keep its pipe open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[str], seconds: float) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.communicate()[0] + f"\nkilled after {seconds:g} s"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
