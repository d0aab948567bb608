"""Reads untrusted YAML: bounded in size, plain data only.

Null, booleans, integers of 64 bits, floats, strings, lists and mappings are read. Aliases, which
can make a short file stand for gigabytes, are rejected, and so are tags and dates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files import read_bounded

#: Bytes of a file. The longest list of configurations that ships has about 4 kB.
MOST_BYTES = 2**20
#: A configuration file nests four levels: the file, its list, an entry, a list of tiles.
_MOST_LEVELS = 20
#: Characters of one scalar.
_MOST_CHARACTERS = 10_000
#: Values of a file: about ten seconds of reading.
_MOST_VALUES = 100_000
_INTEGERS = range(-(2**63), 2**63)
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


def load_yaml(path: Path, limit: int = MOST_BYTES) -> Any:
    """The plain data in the YAML file `path`, which may have `limit` bytes. Raises UsageError."""
    return parse_yaml(read_bounded(path, limit), str(path))


def parse_yaml(data: bytes, where: str) -> Any:
    """The plain data in UTF-8 YAML text. Raises UsageError, which names `where`, the line and the column."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}"
        ) from None
    try:
        return yaml.load(text, Loader=_Loader)
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
    """Reads plain data, up to a depth, a length and a count."""

    _level = 0
    _values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _rejection(
                f"aliases such as *{event.anchor} are not supported: write the value out", event.start_mark
            )
        if self._level == _MOST_LEVELS:
            raise _rejection(f"more than {_MOST_LEVELS} levels of nesting", event.start_mark)
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _rejection(f"more than {_MOST_VALUES} values", event.start_mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        # Merge keys (<<) and "=" have tags of their own, which are not among these.
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
