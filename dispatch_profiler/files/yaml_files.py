"""Reads untrusted YAML: plain data of limited size.

Accepts null, booleans, 64-bit integers, floats, strings, lists and mappings. Rejects tags, dates, and
aliases, with which a short file can represent gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import read_bounded

Loaded = TypeVar("Loaded")
#: Maximum file size. The longest shipped list of configurations has about 4 kB.
MOST_BYTES = 2**20
#: Configuration files have four levels: the file, its list, an entry, a list of tiles.
_MOST_LEVELS = 20
#: Maximum length of a scalar.
_MOST_CHARACTERS = 10_000
#: Maximum number of values in a file, which take about ten seconds to read.
MOST_VALUES = 100_000
_INTEGERS = range(-(2**63), 2**63)
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


def load_yaml(path: Path, limit: int = MOST_BYTES) -> Any:
    """The plain data in the YAML file `path`, of at most `limit` bytes. Raises UsageError."""
    return parse_yaml(read_bounded(path, limit), str(path))


def parse_yaml(data: bytes, where: str, most_values: int = MOST_VALUES) -> Any:
    """Parse UTF-8 YAML text of at most `most_values` values. Raises UsageError, with `where`, the line and the column."""
    return _loaded(data, where, lambda text: _Loader(text, most_values).get_single_data())


@dataclass(frozen=True)
class FieldLines:
    """The line of a value, and those of its fields or items by their names or numbers; fields have their names' lines."""

    line: int
    inner: Mapping[object, FieldLines] = field(default_factory=dict)

    def of(self, path: Iterable[object]) -> int:
        """The line of the field at `path`, or of the last part of it that there is."""
        found = self
        for part in path:
            if part not in found.inner:
                break
            found = found.inner[part]
        return found.line


def parse_yaml_lines(data: bytes, where: str) -> tuple[Any, FieldLines]:
    """Like `parse_yaml`, with the lines of all values. Raises UsageError for names that are given twice, too."""

    def parse(text: str) -> tuple[Any, FieldLines]:
        loader = _Loader(text, MOST_VALUES)
        node = loader.get_single_node()
        if node is None:
            return None, FieldLines(1)
        return loader.construct_document(node), _lines(node, node.start_mark.line + 1)

    return _loaded(data, where, parse)


def _lines(node: Any, line: int) -> FieldLines:
    if isinstance(node, yaml.SequenceNode):
        return FieldLines(
            line, {at: _lines(item, item.start_mark.line + 1) for at, item in enumerate(node.value)}
        )
    if not isinstance(node, yaml.MappingNode):
        return FieldLines(line)
    fields: dict[object, FieldLines] = {}
    for name, value in node.value:
        if name.value in fields:
            raise _rejection(f"{str(name.value)[:100]} is given twice", name.start_mark)
        fields[name.value] = _lines(value, name.start_mark.line + 1)
    return FieldLines(line, fields)


def _loaded(data: bytes, where: str, load: Callable[[str], Loaded]) -> Loaded:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}"
        ) from None
    try:
        return load(text)
    except _Rejected as error:
        raise UsageError(f"{where}: {_sentence(error)}") from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(f"{where} is not valid YAML: {_sentence(error)}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


def _sentence(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    what = " ".join(str(error.problem or error.context).split())
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what


class _Rejected(yaml.constructor.ConstructorError):
    """Valid YAML that is not read: an alias, a tag, a value beyond the limits above."""


def _rejection(problem: str, mark: Any) -> _Rejected:
    return _Rejected(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """Reads plain data, with limits on nesting, lengths and the number of values."""

    def __init__(self, text: str, most_values: int) -> None:
        super().__init__(text)
        self._most_values = most_values
        self._level = self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _rejection(
                f"aliases such as *{event.anchor} are not supported: write the value out", event.start_mark
            )
        if self._level == _MOST_LEVELS:
            raise _rejection(f"more than {_MOST_LEVELS} levels of nesting", event.start_mark)
        self._values += 1
        if self._values > self._most_values:
            raise _rejection(f"more than {self._most_values} values", event.start_mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        # Merge keys (<<) and "=" have other tags.
        if node.tag not in _PLAIN:
            raise _rejection(f"{node.tag.rpartition(':')[2]} values are not supported", node.start_mark)
        if isinstance(node, yaml.ScalarNode) and len(node.value) > _MOST_CHARACTERS:
            raise _rejection(f"a value has more than {_MOST_CHARACTERS} characters", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, TypeError) as error:  # `0b`, `!!bool maybe`, `!!int ""`
            kind = node.tag.rpartition(":")[2]
            raise _rejection(f"{repr(node.value)[:100]} is not a valid {kind}", node.start_mark) from error
        if type(value) is int and value not in _INTEGERS:
            raise _rejection("an integer has more than 64 bits", node.start_mark)
        return value


# JSON and YAML 1.2 have such numbers; PyYAML reads them as strings, as YAML 1.1 says.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z"), list("-+0123456789")
)
