"""Traces: which tools they need, how the processes are started, and what is read from a trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.boo.driver.tracing import tracy
from dispatch_profiler.boo.driver.tracing.tracy import Zone, capture_tool, parse_zones, trace, trace_folder
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError

#: Tests let `sys.executable` name another program.
PYTHON = sys.executable
ZONES = """name,src_file,src_line,total_ns,total_perc,counts,mean_ns,min_ns,max_ns,std_ns
conv_dispatch_0_matmul_64x64,a.mlir,1,10000,1.5,4,2500,1000,4000,1290.5
iree_hal_device_queue_execute,b.c,7,500,0.1,4,125,100,150,20
"""
EXECUTIONS = """name,src_file,Time from start of program,GPU execution time
conv_dispatch_0,a.mlir,100,1000
copy,b.c,150,9000
conv_dispatch_0,a.mlir,200,3000
"""


def test_kernels_are_read_from_the_zones_of_a_trace():
    assert parse_zones(ZONES) == (Zone("conv_dispatch_0_matmul_64x64", 4, 1.0, 4.0, 2.5, 1.2905),)
    assert str(parse_zones(ZONES)[0]) == (
        "conv_dispatch_0_matmul_64x64: min=1.00us max=4.00us mean=2.50us stddev=1.29us num_dispatches=4"
    )


def test_kernels_are_read_from_the_executions_on_a_gpu():
    (zone,) = parse_zones(EXECUTIONS)

    assert (zone.name, zone.count, zone.min, zone.max, zone.mean) == ("conv_dispatch_0", 2, 1.0, 3.0, 2.0)
    assert zone.stddev == pytest.approx(2.0**0.5)


@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n", "name,counts\nx_dispatch_0,2\n", ZONES.replace("1290.5", "?")]
)
def test_another_table_is_an_error(text: str):
    with pytest.raises(ToolError, match="without name, counts, min_ns"):
        parse_zones(text)


def test_nothing_is_traced_unless_it_is_requested():
    assert trace_folder(None, {}) is None
    assert trace_folder(None, {"IREE_PY_RUNTIME": "default"}) is None


def test_the_variable_of_the_documents_requests_traces():
    environment = {"IREE_PY_RUNTIME": "tracy"}

    assert trace_folder(None, environment) == Path("tracy")
    assert environment == {}
    assert trace_folder("traces", {"IREE_PY_RUNTIME": "tracy"}) == Path("traces")


def test_a_file_is_no_folder_for_traces():
    Path("traces").write_text("")

    with pytest.raises(UsageError, match="traces is not a folder"):
        trace_folder("traces", {})


def test_the_wheel_has_the_capture():
    assert os.access(capture_tool(), os.X_OK)


def test_a_runtime_without_tracy_is_named(monkeypatch):
    monkeypatch.setattr(tracy, "find_spec", lambda _: None)

    with pytest.raises(MissingDependency, match="no Tracy runtime and no iree-tracy-capture"):
        trace_folder("traces", {})


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{PYTHON}\nimport os, sys\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH for tools of Tracy; the capture writes its arguments as the trace."""
    folder = Path("tools").absolute()
    folder.mkdir()
    capture = script(folder / "capture", "open(sys.argv[3], 'w').write(' '.join(sys.argv[1:]))")
    monkeypatch.setattr(tracy, "capture_tool", lambda: capture)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def runs(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """The traced process executes `body` instead of launching."""
    program = script(Path("traced").absolute(), body)
    monkeypatch.setattr(tracy.sys, "executable", str(program))


def test_a_command_is_traced_and_its_kernels_are_listed(tools: Path, monkeypatch):
    note = Path("note").absolute()
    runs(
        monkeypatch,
        f"open({str(note)!r}, 'w').write(' '.join([*sys.argv[1:], os.environ['IREE_PY_RUNTIME'], os.environ['TRACY_PORT']]))",
    )
    script(tools / "tracy-csvexport", f"print({ZONES!r}, end='')")

    first, kernel = trace("conv -n 1", "cpu", Timing(True, 7), Path("traces/a.tracy"))

    (path,) = Path("traces").iterdir()
    assert first == f"trace: {path.absolute()}"
    assert kernel.startswith("conv_dispatch_0_matmul_64x64: min=1.00us")
    *launched, port = note.read_text().split()
    assert launched == [
        "-m",
        "dispatch_profiler.boo.driver.tracing.traced",
        "cpu",
        "7",
        "conv",
        "-n",
        "1",
        "tracy",
    ]
    assert path.read_text() == f"-f -o {path.absolute()} -a 127.0.0.1 -p {port}"


def test_without_csvexport_the_trace_is_kept_and_the_message_says_how_to_build_it(tools: Path, monkeypatch):
    runs(monkeypatch, "")

    kept, missing = trace("conv -n 1", "cpu", Timing(True), Path("traces/a.tracy"))

    assert Path(kept.removeprefix("trace: ")).is_file()
    assert missing.startswith("tracy-csvexport is not on PATH") and "cmake --build" in missing


@pytest.mark.parametrize(
    ("body", "reason", "hint"),
    [
        ("sys.exit('no such device')", "the traced process failed: no such device", ""),
        (
            "sys.exit('x.so: cannot allocate memory in static TLS block')",
            "static TLS block",
            "export GLIBC_TUNABLES=glibc",
        ),
        ("sys.exit(3)", "it printed nothing", ""),
    ],
)
def test_a_traced_process_that_fails_says_why(body: str, reason: str, hint: str, tools: Path, monkeypatch):
    runs(monkeypatch, body)

    with pytest.raises(ToolError, match=reason) as caught:
        list(trace("conv -n 1", "cpu", Timing(True), Path("traces/a.tracy")))
    assert caught.value.hint.startswith(hint)


def test_a_capture_that_fails_is_an_error(tools: Path, monkeypatch):
    runs(monkeypatch, "")
    script(tools / "capture", "sys.exit('protocol mismatch')")

    with pytest.raises(ToolError, match="iree-tracy-capture failed: protocol mismatch"):
        list(trace("conv -n 1", "cpu", Timing(True), Path("traces/a.tracy")))


@pytest.mark.slow
def test_launches_are_captured_by_the_tools_of_the_wheel(monkeypatch):
    monkeypatch.setenv("PATH", "")

    kept, _ = trace("conv -n 1 -c 2 -H 4 -W 4 -k 3 -y 1 -x 1", "cpu", Timing(True, 3), Path("traces/a.tracy"))

    assert kept == f"trace: {Path('traces/a.tracy').absolute()}"
    assert Path("traces/a.tracy").stat().st_size > 10_000


def test_an_export_that_fails_is_an_error(tools: Path, monkeypatch):
    runs(monkeypatch, "")
    script(tools / "tracy-csvexport", "sys.exit('unsupported version')")

    with pytest.raises(ToolError, match="tracy-csvexport failed: unsupported version"):
        list(trace("conv -n 1", "cuda:0", Timing(True), Path("traces/a.tracy")))
