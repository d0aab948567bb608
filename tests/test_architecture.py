"""The picture of the packages in docs/architecture.md shows the imports as they are."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import grimp
import pytest

import dispatch_profiler

ROOT = Path(__file__).parents[1]
SOURCES = Path(dispatch_profiler.__file__).parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "draw_architecture.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("dispatch_profiler", cache_dir=None)


def test_the_picture_shows_the_imports(script: ModuleType, graph: grimp.ImportGraph) -> None:
    """If not: `python scripts/draw_architecture.py` draws it again; look at the picture before you commit it."""
    assert script.picture(graph) == script.PICTURE.read_text()


def test_the_picture_changes_with_the_imports(script: ModuleType, graph: grimp.ImportGraph) -> None:
    changed = grimp.build_graph("dispatch_profiler", cache_dir=None)
    changed.remove_import(
        importer="dispatch_profiler.library.library", imported="dispatch_profiler.dispatches"
    )
    changed.add_import(importer="dispatch_profiler.runtime.null", imported="dispatch_profiler.generator.plan")
    assert script.picture(changed) != script.picture(graph)


def test_only_imports_that_no_chain_replaces_are_drawn(script: ModuleType) -> None:
    edges = {"a": frozenset("bcd"), "b": frozenset("c"), "c": frozenset("d"), "d": frozenset()}
    assert script.reduced(edges) == {
        "a": frozenset("b"),
        "b": frozenset("c"),
        "c": frozenset("d"),
        "d": frozenset(),
    }
    assert script.layers_of(edges) == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_arrows_do_not_cross_where_they_need_not(script: ModuleType) -> None:
    edges = {"a": frozenset("d"), "b": frozenset("c"), "c": frozenset(), "d": frozenset()}
    panel = script.Panel.of(edges, script.PART)
    assert panel.rows in ([["a", "b"], ["d", "c"]], [["b", "a"], ["c", "d"]])


def test_packages_hand_on_types_that_they_define(script: ModuleType) -> None:
    for package, types in script.HANDED_ON.items():
        text = "\n".join(file.read_text() for file in (SOURCES / package).rglob("*.py"))
        assert [each for each in types if not re.search(rf"^class {each}\b", text, re.MULTILINE)] == [], (
            package
        )


def test_modules_and_types_that_the_text_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    types = {*re.findall(r"`([A-Z][A-Za-z]*[a-z])`", text)}
    sources = [file.read_text() for file in SOURCES.rglob("*.py")]
    defined = {name for text in sources for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    assert len(modules) > 20 and len(types) > 30
    assert [each for each in modules if not any((root / each).exists() for root in (SOURCES, ROOT))] == []
    assert types - defined == set()
