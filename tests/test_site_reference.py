"""The reference of the site names what the code has: environment variables, formats of files, and figures."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from script_helpers import load_script

import dispatch_profiler
from dispatch_profiler.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dispatch_profiler.__file__).parent
REFERENCE = ROOT / "docs" / "reference"
#: What holds the environment in the package's modules, and the calls that read or set a variable.
HOLDERS = {"environ", "environment", "_RAW"}
CALLS = {"get", "pop", "setdefault"}


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    return load_script("docs/_extensions/generated_reference.py")


def variables(source: str) -> Iterator[str]:
    """Environment variables that a module reads or sets by a name in its text."""
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        named: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            holder, named = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            holder, named = node.func.value, node.args[0] if node.args else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_flag":
            yield from _name(node.args[0], constants)
        if named is not None and HOLDERS & {getattr(holder, "attr", ""), getattr(holder, "id", "")}:
            yield from _name(named, constants)


def _name(node: ast.expr, constants: dict[str, object]) -> Iterator[str]:
    value = node.value if isinstance(node, ast.Constant) else constants.get(getattr(node, "id", ""))
    if isinstance(value, str):
        yield value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("os.environ.get('A')", ["A"]),
        ("os.environ['A'] = '1'", ["A"]),
        ("N = 'A'\nenvironment.pop(N, None)", ["A"]),
        ("_flag('A', default=True)", ["A"]),
        ("table.get('A'), environ.items()", []),
    ],
)
def test_variables_are_found(source: str, expected: list[str]):
    assert list(variables(source)) == expected


def test_every_environment_variable_of_the_code_is_documented(generated: ModuleType):
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    used = {name for text in texts if "environ" in text for name in variables(text)}
    page = (REFERENCE / "environment.md").read_text()
    documented = {*generated.variables(), *re.findall(r"`([A-Z][A-Z0-9_]+)`", page)}

    assert {"BOO_FREEZE", "XDG_CACHE_HOME"} <= used
    assert used - documented == set()


def test_every_launch_variable_is_read():
    """What the page says of each comes from the module's docstring: none of it is out of date."""
    module = import_module("dispatch_profiler.boo.environment")
    source = Path(str(module.__file__)).read_text()
    described = load_script("docs/_extensions/generated_reference.py").variables()

    assert len(described) >= 13
    assert [name for name in described if f'"{name}"' not in source] == []


def test_every_format_of_files_is_documented():
    page = (REFERENCE / "files.md").read_text()
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    formats = {each for text in texts for each in re.findall(r'"(dispatch_profiler [a-z][a-z ]+)"', text)}

    assert len(formats) >= 8
    assert [each for each in formats if f"`{each}`" not in page] == []


def test_every_option_is_in_the_reference(generated: ModuleType):
    page = generated.commands()

    for name, (module, _) in COMMANDS.items():
        section = page.partition(f"\n## {name}\n" if name != "generate" else "## generate\n")[2].partition(
            "\n## "
        )[0]
        parser = import_module(module).make_parser(f"dispatch-profiler {name}")
        for line in parser.format_full_help().splitlines():
            for option in re.findall(r"^  (--[a-z][\w-]+)", line):
                assert option in section or option in ("--help", "--version", "--quiet", "--help-all"), (
                    name,
                    option,
                )


def test_docstrings_become_restructured_text(generated: ModuleType):
    docstring = ["`a\nb` times *c*, x_", "", "    code * 2", "", "- one", "- two"]

    assert "\n".join(generated.rewritten(docstring)).rstrip() == (
        "``a\nb`` times \\*c\\*, x\\_\n\n::\n\n    code * 2\n\n- one\n- two"
    )


def rows_of(page: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"
    ]


def test_the_mean_of_models_is_the_mean_of_the_table():
    page = (ROOT / "docs" / "others.md").read_text()
    rows = [row for row in rows_of(page) if len(row) == 6 and re.fullmatch(r"[\d.]+", row[4])]
    ratios = [float(row[5]) for row in rows]

    assert len(rows) == 14
    for _, *times, ours, ratio in rows:
        fastest = min(float(each) for each in times if each != "-")
        assert fastest / float(ours) == pytest.approx(float(ratio), abs=0.05)
    summary = next(row for row in rows_of(page) if row[:3] == ["frozen", "2", "1"])
    assert summary[4] == f"**{math.prod(ratios) ** (1 / len(ratios)):.2f}**"
    assert float(summary[5]) == min(ratios)


def test_the_picture_of_speed_shows_the_table():
    page = (ROOT / "docs" / "others.md").read_text()
    means = re.findall(r"\*\*(\d\.\d\d)\*\*", page)
    drawn = re.findall(r">(\d\.\d\d)<", (ROOT / "docs/images/speed.svg").read_text())

    assert len(means) >= 10
    assert sorted(drawn) == sorted(means)
