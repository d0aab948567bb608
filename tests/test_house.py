"""The shape of the package: small folders, and modules that are read in one sitting."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import dispatch_profiler

PACKAGE = Path(dispatch_profiler.__file__).parent
MODULES = [each.relative_to(PACKAGE) for each in PACKAGE.rglob("*.py")]
MOST_MODULES = 15
MOST_LINES = 600


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
    classes = Counter(
        node.name
        for each in MODULES
        for node in ast.walk(ast.parse((PACKAGE / each).read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} == {"Library", "Mode", "Step"}
