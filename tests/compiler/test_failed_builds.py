"""Builds that lacked memory, processes or disk space are distinguished from those that the compiler rejects, and not cached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildError, Cache
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.compiler.workers.pool import with_cause
from dispatch_profiler.errors import WorkerCrashed

NOT_LINKED = (
    "failed to link executable and generate target dylib (check above for more specific error messages)"
)


@pytest.mark.parametrize(
    ("message", "said", "end", "is_deterministic"),
    [
        ("no such tile", "", "no such tile", True),
        ("no such tile", "warning: slow\n", "no such tile", True),
        (NOT_LINKED, "sh: 1: Cannot fork\nLinking failed; exit code 512:\n\n", ": sh: 1: Cannot fork", False),
        (NOT_LINKED, "Linking failed; exit code 9:\n\n", "; the linker may lack memory, processes or disk space", False),
        (NOT_LINKED, "iree-lld: error: x.o: section header table goes past the end of the file\n",
         "the linker may lack memory, processes or disk space", False),
        (NOT_LINKED, "iree-lld: error: undefined symbol: __truncsfbf2\n>>> referenced by -:1\n",
         ": iree-lld: error: undefined symbol: __truncsfbf2", True),
        ("cannot read x: Too many open files", "", "Too many open files", False),
    ],
)  # fmt: skip
def test_the_linkers_words_become_the_reason(message: str, said: str, end: str, is_deterministic: bool):
    found = with_cause(BuildError(message, diagnostics="more", culprits=("f",)), said)

    assert found.message.startswith(message) and found.message.endswith(end)
    assert found.is_deterministic is is_deterministic
    assert found.culprits == ("f",) and "more" in found.diagnostics and said.strip() in found.diagnostics


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -ABRT $$", "killed by SIGABRT: LLVM ERROR: no"),
        ("exit 134", "killed by SIGABRT: LLVM ERROR: no"),  # a shell's
        ("exit 250", "killed by SIGABRT: LLVM ERROR: no"),  # that of Python's wrapper
        ("kill -KILL $$", r"killed by SIGKILL \(the system may have run out of memory\): LLVM ERROR: no"),
    ],
)
def test_a_compiler_command_that_dies_is_a_crash(tmp_path: Path, end: str, message: str):
    tool = tmp_path / "iree-compile"
    tool.write_text(f"#!/bin/bash\necho 'LLVM ERROR: no' >&2\necho >&2\n{end}\n")
    tool.chmod(0o755)

    with pytest.raises(WorkerCrashed, match=f"^{message}$") as caught:
        Tools(tool).check_flags(())
    assert caught.value.is_deterministic is ("SIGKILL" not in message)


#: Launches a kernel under limits, and prints its result or the error.
LAUNCH = """
import os, resource, sys
import numpy as np
from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.registry import BooOpRegistry
signature = BooOpRegistry.parse_command("conv -n 1 -c 4 -H 6 -W 6 -k 4 -y 3 -x 3 -F 1")
get_launchable(signature)  # everything is imported
{limit}
try:
    result = get_launchable(signature)(np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32))
    print("right", float(np.asarray(result)[0, 0, 1, 1]))
except Exception as error:
    print(type(error).__name__, error)
"""
LIMITS = {
    "disk": "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))",
    "folder for temporary files": "os.environ['TMPDIR'] = os.environ['IREE_TMP'] = '/nonexistent'",
    "memory": "from dispatch_profiler.boo.kernels import build\n"
    "build.available_memory = lambda: 2**24",
}  # fmt: skip


@pytest.mark.parametrize(
    "lacking", [each if each == "disk" else pytest.param(each, marks=pytest.mark.slow) for each in LIMITS]
)
def test_a_launch_that_lacked_something_succeeds_once_it_is_there(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In another process with the same cache: the failure was not cached."""
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "kernels"))

    def launched(limit: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", LAUNCH.format(limit=limit)], capture_output=True, text=True, check=True
        )
        return done.stdout

    assert not launched(LIMITS[lacking]).startswith("right")
    assert [entry.name for entry in Cache(tmp_path / "kernels").entries() if entry.failures] == []
    assert launched("") == "right 36.0\n"
