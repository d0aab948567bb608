"""Fills pages of the reference from the code.

A line `<!-- generated: NAME -->` of a page becomes what the function NAME of `PARTS` returns, in Markdown: commands with
their options, environment variables, columns of CSV files, and the names that a package exports. In the repository's
browser, the line is invisible.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import dispatch_profiler
import dispatch_profiler.boo
from dispatch_profiler.__main__ import COMMANDS, NESTED, PROG
from dispatch_profiler.boo import environment
from dispatch_profiler.profiler.report.column_meanings import MEANINGS
from dispatch_profiler.profiler.report.csv_columns import columns, usual_columns

_MARK = re.compile(r"<!-- generated: (\w+) -->")


def one_line(text: str) -> str:
    """`text` as reStructuredText, on one line."""
    return prose(" ".join(text.split()))


def prose(text: str) -> str:
    """Markdown's `code` as code; what else reStructuredText would read as markup is text."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"`{part}`" if number % 2 else re.sub(r"([\\*`|])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", part)
        for number, part in enumerate(parts)
    )


def restructured(lines: Sequence[str]) -> str:
    """`lines` of reStructuredText within Markdown."""
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


# -- commands ------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Each command and subcommand, in the order of `--help`, with its options."""
    parts = []
    for name, (module, _) in COMMANDS.items():
        parts.append(_command(name, module))
        nested = {words[1]: place for words, place in NESTED.items() if words[0] == name}
        parts += [_command(f"{name} {action}", place) for action, place in nested.items()]
    return "\n".join(parts)


def _command(name: str, module: str) -> str:
    parser = import_module(module).make_parser(f"{PROG} {name}")
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS and not _is_common(each)]
    arguments = [_argument(action) for action in shown if not action.option_strings]
    usage = " ".join([parser.prog, "[options]", *arguments])
    text = [f"## {name}", "", "```text", usage, "```", ""]
    text += [restructured([one_line(parser.description or "")])]
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each in shown]
        if actions:
            text.append(restructured(list(_group(parser, group.title or "", actions))))
    if parser.epilog:
        text += ["```text", parser.epilog.replace("%(prog)s", parser.prog), "```", ""]
    return "\n".join(text)


def _is_common(action: argparse.Action) -> bool:
    """Whether every command has it: the page says so once."""
    return bool({"--help", "--help-all", "--version", "--quiet"}.intersection(action.option_strings))


def _argument(action: argparse.Action) -> str:
    name = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    name = name if isinstance(name, str) else " ".join(name)
    return f"[{name}]" if action.nargs in ("?", "*") else f"{name} ..." if action.nargs == "+" else name


def _group(parser: argparse.ArgumentParser, title: str, actions: Sequence[argparse.Action]) -> Iterator[str]:
    """A heading, where the command has named the group, and its options, each with an address."""
    if title not in ("positional arguments", "options"):
        yield from (f".. rubric:: {one_line(title[:1].upper() + title[1:])}", "")
    yield from (f".. program:: {parser.prog}", "")
    for action in actions:
        value = _value(action)
        spellings = [f"{each} {value}".rstrip() for each in action.option_strings]
        yield f".. option:: {', '.join(spellings) or _argument(action)}"
        purpose = parser._get_formatter()._expand_help(action) if action.help else ""
        yield from ("", f"   {one_line(purpose)}", "")


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is None and action.choices:
        return "|".join(map(str, action.choices))
    name = action.metavar or action.dest.upper()
    return name if isinstance(name, str) else " ".join(name)


# -- environment and files -----------------------------------------------------------------------------------------

#: `BOO_CACHE_ON              0: kernels are not kept in files (default: 1)`, then lines that go on.
_VARIABLE = re.compile(r"^([A-Z][A-Z_]+) +(\S.*(?:\n {10,}\S.*)*)", re.MULTILINE)


def variables() -> Mapping[str, str]:
    """Each variable of `dispatch_profiler.boo.environment`, with its meaning."""
    return {name: " ".join(text.split()) for name, text in _VARIABLE.findall(environment.__doc__ or "")}


def environment_variables() -> str:
    """The variables that configure launches and compiled models."""
    lines = [
        line
        for name, text in variables().items()
        for line in (f".. envvar:: {name}", "", f"   {one_line(text)}", "")
    ]
    return restructured(lines)


def csv_columns() -> str:
    """All columns of a CSV file of records with their meanings, in their order."""
    usual = set(usual_columns())
    rows = [f"| `{each}` | {'yes' if each in usual else ''} | {MEANINGS[each]} |" for each in columns()]
    return "\n".join(["| column | by default | meaning |", "|---|---|---|", *rows]) + "\n"


# -- Python --------------------------------------------------------------------------------------------------------


def python_names() -> str:
    """What `dispatch_profiler` exports, by the package that provides it, in the order of the stages."""
    found: dict[str, list[str]] = {stage: [] for stage in _STAGES}
    for name, module in modules(dispatch_profiler).items():
        found[module.split(".")[1]].append(name)
    parts = [f"## {stage}\n\n{_described(dispatch_profiler, names)}" for stage, names in found.items()]
    return "\n".join(parts)


def python_boo_names() -> str:
    """What `dispatch_profiler.boo` exports."""
    return _described(dispatch_profiler.boo, dispatch_profiler.boo.__all__)


#: `unroll        channels of an iteration`, then lines that go on.
_FIELD = re.compile(r"^(\w+) {2,}(\S.*(?:\n {8,}\S.*)*)", re.MULTILINE)
_STAGES = (
    "operations", "configurations", "targets", "workloads", "dispatches", "generator", "compiler", "runtime", "profiler",
    "library", "boo", "errors",
)  # fmt: skip


def modules(package: ModuleType) -> Mapping[str, str]:
    """Each name that `package` exports -> the module from which it imports the name, for type checkers at least."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = {each.name: str(node.module) for node in imports for each in node.names}
    return {name: found[name] for name in package.__all__}


def _described(package: ModuleType, names: Iterable[str]) -> str:
    lines = []
    for name in names:
        value = getattr(package, name)
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        lines.append(f".. auto{kind}:: {package.__name__}.{name}")
        lines += ["   :members:", ""] if kind == "class" else [""]
    return restructured(lines)


def rewritten(docstring: Sequence[str]) -> Iterator[str]:
    """A docstring of this project as reStructuredText: prose with `code`, lists, fields in columns, indented examples.

    What else looks like markup, such as `*` in a formula, is text.
    """
    for paragraph in "\n".join(docstring).split("\n\n"):
        if paragraph.startswith("    "):
            yield from ("::", "", *paragraph.split("\n"), "")
        elif _FIELD.match(paragraph):
            for name, text in _FIELD.findall(paragraph):
                yield from (f"``{name}``", f"    {one_line(text)}", "")
        else:
            yield from (*prose(paragraph).split("\n"), "")


# -- Sphinx ------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[], str]] = {
    each.__name__: each
    for each in (commands, environment_variables, csv_columns, python_names, python_boo_names)
}


def _fill(_app: Any, _page: str, source: list[str]) -> None:
    source[0] = _MARK.sub(lambda match: PARTS[match[1]](), source[0])


def _rewrite(_app: Any, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = list(rewritten(lines))


def setup(app: Any) -> dict[str, bool]:
    """Register the extension."""
    from pygments.lexers.special import TextLexer

    for language in ("csv", "mlir"):
        app.add_lexer(language, TextLexer)
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
