"""What every test gets: an environment of its own, golden files, and trees on the null target."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import pytest
from compiler_worker import SharedCompiler
from hypothesis import settings
from ran import Ran, Run
from run_of_pytest import folder_of_session, is_expendable
from trash import Trash
from turnstile import turn
from worker_helpers import use_in_process_workers

from dispatch_profiler.files.regular import locked
from dispatch_profiler.generator.cli import main as generator_main
from dispatch_profiler.library.compile_cli import main as compile_main
from dispatch_profiler.profiler.cli import main as profiler_main
from dispatch_profiler.targets import cpu

# No test depends on time: without `deadline`, hypothesis fails an example that takes 200 ms on a loaded machine. The
# default suite draws the same examples in every run, so that it fails only for what has changed; `make test-slow` draws
# new ones with `--hypothesis-profile=explore`.
settings.register_profile("tests", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("tests")


#: inductor compiles in the process that asks: its pool is two processes that import torch for each process of a test.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
#: inductor takes the vector instructions that the processor names, instead of compiling programs that try each of them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
#: torch's threads sleep after an operator. Otherwise they spin for some 10 ms, on a core that another worker could use.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
#: Tests compare what is printed, however long a compile takes.
os.environ.setdefault("BOO_PROGRESS", "0")
#: Dynamo does not look for garbage after each graph, for which it takes as long as for a small graph itself.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

#: Skipped tests fail unless the machine lacks something; an abort of the compiler fails one test; some cases of a test run
#: by default, and all of them in slow runs; a run can be resumed.
pytest_plugins = ("skips", "expendable", "some_cases", "resumed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--vmfbs", metavar="DIR", help="where vmfbs of tests on a GPU are kept")


def pytest_configure() -> None:
    """Let tests send Ctrl-C, also in a shell's background job, which starts with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Each worker of pytest-xdist begins to collect elsewhere; `pytest_collection_modifyitems` restores the order.

    Modules and tests stay, so that looking for garbage among them finds none: while they are collected, where it
    takes a seventh of the time, and in the tests, where each search takes up to a second."""
    if hasattr(session.config, "workerinput") and _is_all(session.config):
        session.config.args = _rotated(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _is_all(config: pytest.Config) -> bool:
    return [Path(each).resolve() for each in config.args] == [Path(__file__).parent]


def _rotated(config: pytest.Config) -> list[str]:
    """All folders and files with tests, from the place of this worker on.

    In a fresh clone, pytest rewrites the assertions of each module, which takes half a minute for all modules. Workers
    that begin at different places find most modules rewritten by another worker.
    """
    here = Path(__file__).parent
    places = [
        path for path in sorted(here.iterdir()) if path.match("test_*.py") or any(path.glob("**/test_*.py"))
    ]
    sizes = [sum(file.stat().st_size for file in (path, *path.rglob("*.py"))) for path in places]
    ends = list(accumulate(sizes))
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    first = bisect_right(ends, ends[-1] * worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    first %= len(places)
    return [str(path) for path in (*places[first:], *places[:first])]


def pytest_unconfigure() -> None:
    """The interpreter looks for garbage everywhere when it ends: nanobind reports what is left."""
    gc.unfreeze()


@pytest.fixture(scope="module")
def browser() -> Generator[object, None, None]:
    """A headless Chromium, for tests that are marked with `needs_chromium`."""
    from browser_helpers import chromium

    with chromium() as found:
        yield found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while the other workers of pytest-xdist wait."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with turn(folder_of_session(item.config), alone=item.get_closest_marker("alone") is not None):
        return (yield)


#: Files with the longest tests.
LONG = (
    "test_documents.py", "test_planted_faults.py", "test_triton_interpreted.py", "test_compiled_forms.py", "test_compiled_microkernels.py",
    "test_restart.py", "test_strides.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `alone` are the first, while no long test keeps them waiting; then the long ones, so that no worker
    ends with one. All workers have the same order."""

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("alone") is not None:
            return 0
        return 1 if item.path.name in LONG else 2

    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)
    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def compiler_in_a_worker(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """No test compiles in a process of pytest that an abort of the compiler must not end."""
    if is_expendable(request.config):
        yield
        return
    compiler = SharedCompiler()
    with pytest.MonkeyPatch.context() as patch:
        compiler.install(patch)
        yield
    compiler.close()


@pytest.fixture(autouse=True)
def torch_as_at_its_start(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """torch draws the same numbers in every run of a test, whichever tests ran before. In the next test, it records
    gradients and has all its threads: measuring it changes both in its process, which here is that of the tests."""
    before = sys.modules.get("torch")
    threads = before.get_num_threads() if before is not None else None
    if before is not None:
        _seed(before, zlib.crc32(request.node.nodeid.encode()))
    yield
    # A test may still hide it, with None.
    torch = sys.modules.get("torch") or before
    if torch is not None:
        torch.set_grad_enabled(True)
        if threads is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _seed(torch: ModuleType, number: int) -> None:
    """As `torch.manual_seed`, which for each kind of GPU that is not in use yet keeps the stack of calls as text: formatting
    it takes 2 ms, longer than many a test. Without CUDA in the build of torch, there is the generator of the CPU alone."""
    if torch.backends.cuda.is_built():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@pytest.fixture(scope="session")
def shared_builds(request: pytest.FixtureRequest) -> Path:
    """A cache of compiled modules for all tests of this run: `--cache-dir` of trees that tests start from.

    Its entries are found by content and checked when they are read, so that no test depends on which
    others ran before. Tests of compiling and of the cache itself compile in the cache of their own home.
    """
    return folder_of_session(request.config) / "builds"


@pytest.fixture(scope="session")
def made_once(request: pytest.FixtureRequest) -> Callable[[str, Callable[[Path], None]], Path]:
    """`made_once("name", make)`: the file or folder that `make(path)` writes for the first worker that asks for it."""

    def get(name: str, make: Callable[[Path], None]) -> Path:
        folder = folder_of_session(request.config) / "made"
        folder.mkdir(exist_ok=True)
        path, unfinished = folder / name, folder / f"{name}.unfinished"
        with locked(folder / f"{name}.lock"):
            if not path.exists():
                make(unfinished)
                unfinished.rename(path)
        return path

    return get


@pytest.fixture(scope="session")
def trash(tmp_path_factory: pytest.TempPathFactory) -> Generator[Trash, None, None]:
    """Folders are removed while tests go on."""
    made = Trash(tmp_path_factory.getbasetemp() / "trash")
    yield made
    made.close()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path, trash: Trash) -> Generator[Path, None, None]:
    """pytest's, which removes the folder of a test that passed before the next one starts; nothing is left to remove."""
    failed = request.session.testsfailed
    yield tmp_path
    keeps = request.config.getini("tmp_path_retention_policy") != "failed"
    if not keeps and request.session.testsfailed == failed:
        trash.put(tmp_path)


@pytest.fixture(scope="session")
def known_cpus(request: pytest.FixtureRequest) -> Path:
    """What `host` stands for: it takes seconds to try, so that this outlives the run, as what failed last does."""
    cache = getattr(request.config, "cache", None)
    if cache is not None:
        return Path(cache.mkdir("cpus"))
    (folder := folder_of_session(request.config) / "cpus").mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def isolated(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_cpus: Path
) -> None:
    """Nothing of the user's: a working folder, a home and caches that are empty, but for what `host` stands for.

    The cache of inductor, by content, is that of the run, so that the headers of torch are compiled once.
    """
    # To number the folder of a test, pytest reads the names of all folders and of such links, which it leaves behind.
    (tmp_path.parent / f"{tmp_path.name.rstrip('0123456789')}current").unlink(missing_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".cache").mkdir()  # one after another: `parents` tries the last one first
    know_cpus(home / ".cache" / "dispatch_profiler", known_cpus)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder_of_session(request.config) / "inductor"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def know_cpus(cache: Path, known: Path) -> None:
    """Let `known` be the part of a user's cache that keeps what `host` stands for."""
    cache.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (cache / "cpus").symlink_to(known)


@pytest.fixture
def shared_cache(shared_builds: Path, isolated: None, known_cpus: Path) -> None:
    """The user's cache of this test is that of the run: for commands in processes of their own."""
    own = Path(os.environ["XDG_CACHE_HOME"]) / "dispatch_profiler"
    know_cpus(shared_builds, known_cpus)
    (own / "cpus").unlink()
    own.rmdir()
    own.symlink_to(shared_builds)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker processes: for tests that need no crash, hang or memory limit."""
    use_in_process_workers(monkeypatch)


@pytest.fixture
def host_has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`host_has("avx512f")`: the CPU of this machine has these features and no others."""

    def has(*features: str) -> None:
        monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(features)))

    return has


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules choose kernels for two threads, however many cores the machine has."""
    monkeypatch.setattr("dispatch_profiler.cores.physical_cores", lambda: {"0", "1"})


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that name no device launch on the CPU, as they do on a machine without a GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with tests/golden/<folder>/<test>.txt; `--update-golden` rewrites it."""
    here = Path(__file__).parent
    folder = request.path.parent.relative_to(here)
    name = request.node.name.replace("[", "-").replace("]", "").replace("/", "_")
    path = here / "golden" / folder / f"{request.path.stem}.{name}.txt"

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"there is no golden file {path}: run pytest --update-golden and read it"
        assert text == path.read_text()

    return check


_says_how_many = re.compile(r"(^| )(-j|--jobs|--num-cpu|--executor|--scheduler|--cache-(info|clear))")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("generator", "--problem-m=64")` calls a command in this process.

    `compile` uses one compiler process, unless the arguments say otherwise: more take longer to start
    than a small tree takes to compile.
    """
    mains = {"generator": generator_main, "compile": compile_main, "profiler": profiler_main}

    def call(command: str, *arguments: str) -> Ran:
        capsys.readouterr()
        one = ["-j1"] if command == "compile" and not _says_how_many.search(" ".join(arguments)) else []
        try:
            status = mains[command]([*one, *arguments])
        except SystemExit as exit_:  # argparse ends --help this way
            status = exit_.code if isinstance(exit_.code, int) else 2
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


@pytest.fixture
def null_tree(run: Run, tmp_path: Path, shared_builds: Path) -> Callable[..., Path]:
    """`null_tree("--problem-m=8", faults={...})`: a generated and compiled tree on the null target."""
    import yaml

    def make(*arguments: str, faults: dict[str, dict[str, object]] | None = None) -> Path:
        target = "null"
        if faults is not None:
            file = tmp_path / "faults.yaml"
            file.write_text(yaml.safe_dump(faults, sort_keys=False))
            target = f"null:{file}"
        generated: Sequence[str] = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
        run("generator", f"--target={target}", *(arguments or generated)).checked()
        compiled = run("compile", "-j1", f"--cache-dir={shared_builds}")
        assert compiled.status in (0, 1), compiled.err
        return Path.cwd()

    return make
