"""What every test gets: an environment of its own, golden files, and trees on the null target."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from turnstile import turn

from dispatch_profiler.compiler.cli import main as compile_main
from dispatch_profiler.generator.cli import main as generator_main
from dispatch_profiler.profiler.cli import main as profiler_main


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--vmfbs", metavar="DIR", help="where vmfbs of tests on a GPU are kept")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while the other workers of pytest-xdist wait."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    # The workers' folders lie in one of this session.
    session = item.config._tmp_path_factory.getbasetemp().parent
    with turn(session, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's: a working folder, a home and caches that are empty."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


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


@dataclass(frozen=True)
class Outcome:
    """What a command answered."""

    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("generator", "--problem-m=64")` calls a command in this process."""
    mains = {"generator": generator_main, "compile": compile_main, "profiler": profiler_main}

    def call(command: str, *arguments: str) -> Outcome:
        capsys.readouterr()
        try:
            status = mains[command](list(arguments))
        except SystemExit as exit_:  # argparse ends --help this way
            status = exit_.code if isinstance(exit_.code, int) else 2
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture
def null_tree(run: Run, tmp_path: Path) -> Callable[..., Path]:
    """`null_tree("--problem-m=8", faults={...})`: a generated and compiled tree on the null target."""
    import yaml

    def make(*arguments: str, faults: dict[str, dict[str, object]] | None = None) -> Path:
        target = "null"
        if faults is not None:
            file = tmp_path / "faults.yaml"
            file.write_text(yaml.safe_dump(faults, sort_keys=False))
            target = f"null:{file}"
        generated: Sequence[str] = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
        outcome = run("generator", f"--target={target}", *(arguments or generated))
        assert outcome.status == 0, outcome.err
        compiled = run("compile", "-j1")
        assert compiled.status in (0, 1), compiled.err
        return Path.cwd()

    return make
