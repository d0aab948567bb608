"""`compile.py` in processes of their own, killed by progress and never by the clock."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dispatch_profiler.compiler import artifact_of
from dispatch_profiler.dispatches import Manifest, State, Tree, load_manifest
from dispatch_profiler.files.regular import sha256

ROOT = Path(__file__).parents[2]
COMPILE = ROOT / "compile.py"
#: One operation in three modules, for the generator.
SMALL = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
#: Two of them.
TWO = ("--problem-m=16,32", *SMALL[1:])
_MARKER = "DISPATCH_PROFILER_TEST_MARKER"
_LINE = re.compile(r"\[Compiling\]: (?P<operation>\S+?)(?: \((?P<module>[^)]*)\))?: ")
#: How long a killed process's children may take to go. A bound for failure, not a measure.
_GONE_SECONDS = 30.0
#: What Python's audit hooks call the changes of files; see `killed_at`.
CHANGES = "open os.rename os.remove os.mkdir os.chmod os.utime"
#: Calls compile.py; the process kills itself at the given change of a file in the given folders.
_DIES_AT = """
import os, runpy, signal, sys
at, count = int(sys.argv[1]), 0
folders = tuple(sys.argv[2].split(os.pathsep))
events = sys.argv[3].split()
def heard(event, arguments):
    global count
    if event not in events:
        return
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        return
    path = arguments[0]
    if isinstance(path, (str, bytes)) and os.path.abspath(os.fsdecode(path)).startswith(folders):
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
import dispatch_profiler.library.compile_cli
sys.argv = sys.argv[4:]
sys.addaudithook(heard)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def modules_in(text: str) -> list[tuple[str, str]]:
    """(operation, module) of each module that was really compiled, as compile.py tells."""
    found = (_LINE.match(line) for line in text.splitlines())
    return [(m["operation"], m["module"] or "") for m in found if m]


@dataclass
class Ran:
    """What one run of compile.py did until it ended, by itself or not."""

    status: int
    err: str

    @property
    def modules(self) -> list[tuple[str, str]]:
        return modules_in(self.err)


class EndedEarly(Exception):
    """A sweep ended by itself before it could be stopped: a busy machine reads its lines late."""


@dataclass
class Sweep:
    """Runs of compile.py on one tree, each in a session of its own."""

    tree: Path = field(default_factory=Path.cwd)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marker = uuid.uuid4().hex

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(COMPILE), f"--generated-dir={self.tree}", *self.arguments, *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**_environment(), **self.environment, _MARKER: self.marker},
            start_new_session=True,
        )
        assert process.stderr is not None
        # A small pipe: the process cannot run far ahead of what has been read.
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        return process

    def run(self, *arguments: str) -> Ran:
        """To the end."""
        process = self.start(*arguments)
        _, err = process.communicate()
        return Ran(process.returncode, err.decode())

    def stopped(self, lines: int, sign: signal.Signals, *arguments: str, group: bool = False) -> Ran:
        """Send `sign` as soon as `lines` modules have been told; to the whole group if wanted. Raises EndedEarly."""
        process = self.start(*arguments)
        assert process.stderr is not None
        text = b""
        while text.count(b"[Compiling]") < lines or not text.endswith(b"\n"):
            piece = process.stderr.read(1) if text.count(b"[Compiling]") >= lines else process.stderr.read(64)
            if not piece:
                process.stderr.close()
                process.wait()
                raise EndedEarly(
                    f"ended after {text.count(b'[Compiling]')} modules, before it could be stopped"
                )
            text += piece
        (os.killpg if group else os.kill)(process.pid, sign)
        rest, status = process.stderr.read(), process.wait()
        while piece := process.stderr.read():
            rest += piece
        process.stderr.close()
        # The last line may be cut short: it was not told.
        told = (
            (text + rest).decode().rpartition("\n")[0] if sign is signal.SIGKILL else (text + rest).decode()
        )
        return Ran(status, told)

    def killed_at(self, number: int, *arguments: str, events: str = CHANGES) -> Ran:
        """Killed with -9 just before its `number`th change of a file of the tree or the cache."""
        folders = os.pathsep.join([str(self.tree.resolve()), os.environ["XDG_CACHE_HOME"]])
        ours = [str(COMPILE), f"--generated-dir={self.tree}", *self.arguments, *arguments]
        process = subprocess.run(
            [sys.executable, "-c", _DIES_AT, str(number), folders, events, *ours],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**_environment(), **self.environment, _MARKER: self.marker},
        )
        return Ran(process.returncode, process.stderr)

    def wait_until_gone(self) -> None:
        """No process that inherited our environment is left. Fails if some stay."""
        deadline = time.monotonic() + _GONE_SECONDS
        while left := list(self._alive()):
            assert time.monotonic() < deadline, f"processes that outlived their parent: {left}"
            time.sleep(0.01)

    def _alive(self) -> Iterator[str]:
        wanted = f"{_MARKER}={self.marker}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


# -- what a tree must be at the end --------------------------------------------------------------


def load(tree: Path) -> Manifest:
    return load_manifest(Tree(tree))


def modules_of(tree: Path) -> set[tuple[str, str]]:
    """(operation, module) of everything to compile."""
    pairs = load(tree).dispatches()
    return {(e.operation.name, d.dispatch.configuration.module) for e, d in pairs}


def vmfbs(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in sorted(tree.rglob("*.vmfb"))}


def _environment() -> dict[str, str]:
    """Ours, without what makes coverage follow us: Ctrl-C within its lock would hang what it follows."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


def leftovers(*folders: Path) -> list[Path]:
    """Temporary files; the locks stay, by design."""
    found = [
        p for folder in folders for p in folder.rglob("*") if p.name.startswith(".") or "tmp" in p.suffix
    ]
    return [p for p in found if p.is_file() and "lock" not in p.name]


def cache_entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.built"))


def cache_folder() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "dispatch_profiler"


def null_functions(data: bytes) -> set[str]:
    return set(json.loads(data)["functions"])


def iree_functions(data: bytes) -> set[str]:
    """Names of the functions that a vmfb exports, as iree.runtime sees them."""
    from iree import runtime

    config = runtime.Config("local-sync")
    module = runtime.VmModule.copy_buffer(config.vm_instance, data)
    return {name for name in module.function_names if not name.startswith("__") and "$" not in name}


def assert_all_is_right(tree: Path, functions=null_functions) -> None:
    """Every dispatch is compiled; every vmfb is what the manifest says, with just its functions."""
    manifest = load(tree)
    files = set()
    for entry in manifest.entries:
        assert {d.state for d in entry.dispatches} == {State.COMPILED}, entry.operation.name
        wanted: dict[str, set[str]] = {}
        for d in entry.dispatches:
            wanted.setdefault(d.dispatch.configuration.module, set()).add(d.dispatch.name)
        assert sorted(m.name for m in entry.modules) == sorted(wanted), entry.operation.name
        for module in entry.modules:
            for purpose, artifact in (("verify", module.verify), ("profile", module.profile)):
                path = manifest.tree.vmfb(entry.operation, module.name, purpose)
                assert artifact is not None and artifact_of(path) == artifact, path
                assert functions(path.read_bytes()) == wanted[module.name], path
                files.add(path)
    assert files == set(tree.rglob("*.vmfb"))


def assert_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    """Byte for byte; says which files differ, not how."""
    assert sorted(one) == sorted(other)
    assert [name for name in one if sha256(one[name]) != sha256(other[name])] == []


def assert_nothing_twice(runs: Sequence[Ran]) -> None:
    told = [module for ran in runs for module in ran.modules]
    assert sorted(m for m in set(told) if told.count(m) > 1) == []
