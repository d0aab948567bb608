"""Tests use public names of the package: what they reach by other names, they hold on to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import dispatch_profiler

MODULES = list(Path(dispatch_profiler.__file__).parent.rglob("*.py"))
TESTS = Path(__file__).parent
MOST_FILES_WITH_PRIVATE_USES = 18
PATCHERS = {"setattr", "delattr", "getattr", "hasattr", "patch", "object"}
#: Names of argparse, torch and named tuples, too.
OF_OTHERS = {"_get_values", "_is_view", "_replace", "_safe_softmax", "_softmax", "_version"}
_WORD = re.compile(r"(?<!\w)_\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def written(source: str) -> set[str]:
    """The words of a text that are private names of something; finding them takes less than a tenth of parsing it."""
    return {each for each in _WORD.findall(source) if is_private(each)} - OF_OTHERS


def private_names(sources: Iterable[str]) -> set[str]:
    """Names with an underscore that the package defines: modules, classes, functions, methods, variables, attributes."""
    names = {each.stem for each in MODULES}
    for node in (node for each in sources for node in ast.walk(ast.parse(each))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if is_private(name)} - OF_OTHERS


def called(function: ast.expr) -> str:
    """The last part of the name of a function."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def named_parts(node: ast.AST) -> list[str]:
    """The parts of the dotted names of the package that a node of a test states."""
    if isinstance(node, ast.ImportFrom):
        return [part for alias in node.names for part in f"{node.module}.{alias.name}".split(".")]
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in alias.name.split(".")]
    if isinstance(node, ast.Attribute) and not (
        isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    ):
        return [node.attr]
    if isinstance(node, ast.Call) and called(node.func) in PATCHERS:
        texts = [
            each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        return [part for text in texts for part in text.split(".")]
    return []


def private_uses(source: str, private: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the name of each use of a private name of the package."""
    for node in ast.walk(ast.parse(source)):
        for name in set(named_parts(node)) & private:
            yield node.lineno, name


def test_a_private_use_is_seen() -> None:
    texts = (
        "from package._module import public",
        "from package.module import _name",
        "import package._module",
        "module._name",
        "self._name, module.name, '_name'",
        'monkeypatch.setattr(module, "_name", None)',
        'patch("package.module._name")',
    )
    seen = [[name for _, name in private_uses(text, {"_module", "_name"})] for text in texts]
    assert seen == [["_module"], ["_name"], ["_module"], ["_name"], [], ["_name"], ["_name"]]


def test_tests_use_public_names() -> None:
    """Only files are parsed whose words allow for a use, and then only modules that may define what is used."""
    modules = {each: written(each.read_text()) for each in MODULES}
    possible = {each.stem for each in MODULES}.union(*modules.values())
    uses = {
        str(file.relative_to(TESTS)): list(private_uses(source, possible))
        for file in sorted(TESTS.rglob("*.py"))
        if written(source := file.read_text()) & possible
    }
    used = {name for found in uses.values() for _, name in found}
    private = private_names(each.read_text() for each, words in modules.items() if words & used)
    places = {
        file: [f"{line}: {name}" for line, name in found if name in private] for file, found in uses.items()
    }
    places = {file: each for file, each in places.items() if each}
    assert len(places) <= MOST_FILES_WITH_PRIVATE_USES, places
