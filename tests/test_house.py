"""The shape of the package: small folders, modules that are read in one sitting, and imports that point downward.

`lint-imports` checks which package may import which (`setup.cfg`); here are the rules for single modules.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import dispatch_profiler

PACKAGE = Path(dispatch_profiler.__file__).parent
MODULES = [each.relative_to(PACKAGE) for each in PACKAGE.rglob("*.py")]
MOST_MODULES = 15
MOST_LINES = 600
#: What looks like the beginning of a class.
CLASS = re.compile(r"\bclass\s+(\w+)")
#: Imports of every kind: also those for type checkers, and those inside functions. The package itself names what its
#: packages provide, for type checkers alone.
IMPORTS = grimp.build_graph("dispatch_profiler", cache_dir=None)
IMPORTED = {
    each: IMPORTS.find_modules_directly_imported_by(each)
    for each in IMPORTS.modules
    if each != "dispatch_profiler"
}


def test_folders_have_few_modules() -> None:
    counts = Counter(each.parent for each in MODULES if each.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_modules_are_short() -> None:
    lines = {str(each): len((PACKAGE / each).read_text().splitlines()) for each in MODULES}
    assert {each: count for each, count in lines.items() if count > MOST_LINES} == {}


def test_folders_of_modules_say_what_they_hold() -> None:
    folders = {each.parent for each in MODULES} - {Path("templates")}
    opened = {folder: (PACKAGE / folder / "__init__.py") for folder in folders}
    assert [folder for folder, file in opened.items() if not file.read_text().startswith('"""')] == []


def test_class_names_are_unique() -> None:
    """`Library`: tuned kernels, and what kernels are compared with. `Mode`: of caches, and of launches. `Step`: of a form, and
    of an epilogue."""
    texts = [(PACKAGE / each).read_text() for each in MODULES]
    # Parsing all modules takes seconds: words in comments and texts count, too, until a name occurs twice.
    words = Counter(name for text in texts for name in CLASS.findall(text))
    classes = Counter(
        node.name
        for text in texts
        if any(words[name] > 1 for name in CLASS.findall(text))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} == {"Library", "Mode", "Step"}


def circle(imported: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def upward(imported: dict[str, set[str]]) -> list[str]:
    """Imports of a package by a module inside of it."""
    return [
        f"{importer} -> {each}"
        for importer, modules in imported.items()
        for each in modules
        if importer.startswith(f"{each}.")
    ]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Neither at their top nor inside functions: what two modules need is in a third one."""
    assert circle(IMPORTED) == []


def test_no_module_imports_a_package_that_contains_it() -> None:
    """What an `__init__` and the modules beside it need has a module of its own, as `version`."""
    assert upward(IMPORTED) == []


def test_no_hint_installs_the_package_from_an_index() -> None:
    """It is on none: a checkout is installed with `-e .`, and extras of a wheel by their own names."""
    root = PACKAGE.parent
    texts = [
        *root.glob("*.md"),
        *root.glob("docs/**/*.md"),
        *root.glob("benchmarks/*.py"),
        *PACKAGE.rglob("*.py"),
    ]
    named = [
        str(each.relative_to(root)) for each in texts if "install 'dispatch_profiler[" in each.read_text()
    ]
    assert named == []


def test_circles_and_upward_imports_are_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert upward({"a.b.c": {"a.b", "a.d"}, "ab": {"a"}}) == ["a.b.c -> a.b"]


def test_handlers_of_every_exception_say_why() -> None:
    """In a comment on the line or on the next one: what is raised there that has no narrower class."""
    without = []
    for each in MODULES:
        lines = (PACKAGE / each).read_text().splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if line.strip().startswith("except Exception") and "#" not in line + after:
                without.append(f"{each}: {line.strip()}")
    assert without == []
