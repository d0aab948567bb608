"""Lists of configurations, shipped with the package or written by a user.

A file is YAML (or JSON, which is YAML):

    configurations:
      - {kinds: [matmul, batch_matmul], types: [f32], distribution: [64, 128], vector: [8, 32, 4]}
      - {types: [f16], instruction: mmasync, workgroup: [128, 128], reduction: [32], stages: 5}
      - {thread: [4, 8], workgroup: [64, 64], reduction: [16]}
      - {triton: [128, 256, 64], warps: 8, stages: 3}
      - {extern: mine, object: k.ptx, entry: kernel, workgroups: ["ceildiv(m, 128)"], workgroup_size: [256]}
      - {flow: data_tiling}
      - {form: im2col, distribution: [64, 128], vector: [8, 32, 4]}
      - {form: permuted}
      - {microkernel: [2, 7, 32], distribution: [7, 64]}
      - {default: true}
      - {list: original}

`kinds` and `types` (of the inputs) restrict an entry; without them it applies to every operation that it
fits. `list` includes all entries of a shipped list; any other entry is of the kind whose `yaml_key` it has.
`form` is combined with the keys of the configuration of its kernels; without such keys, the compiler
configures them. The path in `object` is relative to the file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations._base import KINDS, Configuration, check_choice
from dispatch_profiler.errors import (
    ConfigurationError,
    OperationError,
    UsageError,
    did_you_mean,
    short_repr,
)
from dispatch_profiler.operations import KINDS as OPERATION_KINDS
from dispatch_profiler.operations import Operation, element_type

#: Maximum configurations of a file, including the configurations of the lists that it names.
_MAX_ENTRIES = 10_000
#: Maximum characters of a message about an entry, which may quote the entry.
_MAX_CHARACTERS = 500
_RESTRICTIONS = ("kinds", "types")
_LIST = "list"


@dataclass(frozen=True)
class ListedConfiguration:
    """A configuration with the operation kinds and input types that it is for (empty: all)."""

    configuration: Configuration
    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    #: Its place in a user's file, for messages: `mine.yaml, entry 3`.
    origin: str = field(default="", compare=False)

    def is_for(self, operation: Operation) -> bool:
        """Whether `kinds` and `types` include the kind and the input type of `operation`."""
        return (not self.kinds or operation.kind in self.kinds) and (
            not self.types or operation.element_type.name in self.types
        )


_SHIPPED = resources.files("dispatch_profiler.configurations") / "shipped"


def shipped_lists() -> tuple[str, ...]:
    """Names of the shipped lists: target families, and others such as `original`."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _SHIPPED.iterdir()))


@cache
def shipped_configurations(name: str) -> tuple[ListedConfiguration, ...]:
    """The shipped list `name`, such as `llvm-cpu`; empty if it does not exist."""
    if name not in shipped_lists():
        return ()
    from dispatch_profiler.files.yaml_files import parse_yaml  # imported here: only the generator needs it

    file = f"{name}.yaml"
    listed = _parse(parse_yaml((_SHIPPED / file).read_bytes(), file), file)
    return tuple(replace(each, origin="") for each in listed)


def load_configurations(path: Path) -> tuple[ListedConfiguration, ...]:
    """Read a user's file. Raises ConfigurationError, which names the file, the entry and the key."""
    from dispatch_profiler.files.yaml_files import load_yaml  # imported here: only the generator needs it

    try:
        data = load_yaml(path)
    except UsageError as error:
        raise ConfigurationError(str(error), hint="--configurations takes a YAML file") from error
    folder = Path(os.path.abspath(path)).parent
    listed = tuple(
        replace(each, configuration=each.configuration.located(folder)) for each in _parse(data, str(path))
    )
    _check_names({each.configuration for each in listed}, path)
    return listed


def _check_names(configurations: set[Configuration], path: Path) -> None:
    """Names become function names, so two configurations must not share one."""
    for name, count in Counter(each.name for each in configurations).items():
        if count > 1:
            raise ConfigurationError(
                f"{path}: two different configurations are called {name!r}", hint="rename one"
            )


def _parse(data: Any, where: str) -> tuple[ListedConfiguration, ...]:
    if not isinstance(data, dict) or not isinstance(data.get("configurations"), list):
        raise ConfigurationError(
            f"{where} has no list under 'configurations'",
            hint="write 'configurations:' and below it one entry per line, "
            "such as '- {distribution: [64, 128], vector: [8, 32, 4]}'",
        )
    listed: list[ListedConfiguration] = []
    for i, row in enumerate(data["configurations"], 1):
        origin = f"{where}, entry {i}"
        listed += (replace(each, origin=origin) for each in _listed(row, origin))
        if len(listed) > _MAX_ENTRIES:
            raise ConfigurationError(
                f"{where} has more than {_MAX_ENTRIES} configurations", hint="split the file"
            )
    return tuple(listed)


def _listed(row: Any, where: str) -> tuple[ListedConfiguration, ...]:
    """The configurations of an entry: one, or all of a shipped list."""
    if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
        raise ConfigurationError(f"{where}: expected keys and values, but got {short_repr(row)}")
    marker = _marker(row, where)
    try:
        kinds = _names(row.get("kinds", ()), "kinds", OPERATION_KINDS)
        types = _types(row.get("types", ()))
        if marker == _LIST:
            check_choice(_LIST, row[_LIST], shipped_lists())
            return tuple(
                ListedConfiguration(each.configuration, kinds or each.kinds, types or each.types)
                for each in shipped_configurations(row[_LIST])
            )
        entry = {key: value for key, value in row.items() if key not in _RESTRICTIONS}
        kind = next(kind for kind in KINDS.values() if kind.yaml_key == marker)
        return (ListedConfiguration(kind.from_yaml(entry), kinds, types),)
    except (ConfigurationError, OperationError) as error:
        raise ConfigurationError(f"{where}: {str(error)[:_MAX_CHARACTERS]}", hint=error.hint) from error


def _marker(row: Mapping[str, Any], where: str) -> str:
    """The key that marks the kind of an entry. Raises ConfigurationError for unknown keys."""
    # Key that marks an entry -> the other keys that the entry may have.
    keys = {kind.yaml_key: kind.yaml_keys() for kind in KINDS.values() if kind.yaml_key} | {_LIST: ()}
    present = [key for key in keys if key in row]
    # An entry with a form also has the key of its kernels' configuration.
    marker = next(
        (key for key in present if {*present} <= {key, *keys[key]}), present[0] if present else None
    )
    known = [*_RESTRICTIONS, *([marker, *keys[marker]] if marker else keys)]
    options = {key for others in keys.values() for key in others}
    for key in row:
        if key not in known and (marker is not None or key not in options):
            raise ConfigurationError(f"{where}: unknown key {short_repr(key)}", hint=did_you_mean(key, known))
    if marker is None:
        raise ConfigurationError(f"{where}: needs one of {', '.join(keys)}")
    return marker


def _names(value: Any, key: str, known: Iterable[str] | None) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{key} must be a list of names, but got {short_repr(value)}")
    for name in names:
        if known is not None and name not in known:
            raise ConfigurationError(
                f"unknown name {short_repr(name)} under {key}", hint=did_you_mean(name, known)
            )
    return names


def _types(value: Any) -> tuple[str, ...]:
    try:
        return tuple(element_type(name).name for name in _names(value, "types", None))
    except OperationError as error:
        raise ConfigurationError(f"{error} under types", hint=error.hint) from error
