"""Keys of caches: each module that a cached result follows from is a part of the key, or excluded by name."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

import dispatch_profiler
from dispatch_profiler.sources import BUILDS, GRAPHS, HOST_CPU, LAUNCHES, Sources, files

PACKAGE = Path(dispatch_profiler.__file__).parent
#: What a cache keeps, and the modules that make it.
MADE_BY = {
    "builds": (BUILDS, ("compiler.request", "compiler.backends.iree")),
    "launches": (LAUNCHES, ("compiler.request", "compiler.backends.iree", "generator.render")),
    "graphs": (GRAPHS, ("boo.backends.known_graphs", "boo.backends")),
    "the host's CPU": (HOST_CPU, ("compiler.backends.host_cpu",)),
}


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("dispatch_profiler", exclude_type_checking_imports=True)


def file_of(module: str) -> Path:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def unknown(kept: Sources, used: set[str]) -> list[str]:
    """The modules of `used` that `kept` does not name."""
    known = {*files(kept.included), *files(kept.excluded)}
    return sorted(module for module in used if file_of(module).exists() and file_of(module) not in known)


@pytest.mark.parametrize("name", MADE_BY)
def test_each_module_that_is_used_is_included_or_excluded(name: str, imports: grimp.ImportGraph) -> None:
    kept, makers = MADE_BY[name]
    used = set().union(
        *(
            {f"dispatch_profiler.{each}", *imports.find_upstream_modules(f"dispatch_profiler.{each}")}
            for each in makers
        )
    )
    assert not unknown(kept, used)
    assert set(map(file_of, used)).intersection(files(kept.included))


def test_a_module_of_a_new_folder_is_unknown(imports: grimp.ImportGraph) -> None:
    """As after a move: the globs of `included` have a module of a deeper folder, and not one of another package."""
    kept = Sources(("compiler/**/*.py",), ("files/regular.py",))
    assert (
        unknown(kept, {"dispatch_profiler.compiler.backends.iree", "dispatch_profiler.files.regular"}) == []
    )
    assert unknown(kept, {"dispatch_profiler.runtime.iree"}) == ["dispatch_profiler.runtime.iree"]


def test_a_glob_without_files_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no file of dispatch_profiler matches compilers/\*\.py"):
        Sources(("files/regular.py", "compilers/*.py"), ()).hash()


def test_a_changed_file_changes_the_hash(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    hashes = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "deep/er/module.py").write_text(text)
        hashes.add(Sources(("deep/**/*.py",), (text,), tmp_path).hash())
    assert len(hashes) == 2
