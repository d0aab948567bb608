"""Lists of configurations: those that ship with the package, and those that a user writes.

A file is YAML (or JSON, which is YAML):

    configurations:
      - {kinds: [matmul, batch_matmul], types: [f32], distribution: [64, 128], vector: [8, 32, 4]}
      - {types: [f16], instruction: mmasync, workgroup: [128, 128], reduction: [32], stages: 5}
      - {thread: [4, 8], workgroup: [64, 64], reduction: [16]}
      - {triton: [128, 256, 64], warps: 8, stages: 3}
      - {extern: mine, object: k.ptx, entry: kernel, workgroups: ["ceildiv(m, 128)"], workgroup_size: [256]}
      - {flow: data_tiling}
      - {default: true}
      - {list: original}

`kinds` and `types` (of the inputs) narrow an entry; without them it goes for all that it fits.
`list` stands for all entries of a list that ships. The `object` of a kernel of one's own is a path as
seen from the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations._base import Configuration, Default, check_choice
from dispatch_profiler.configurations.cpu_tiles import CpuTiles
from dispatch_profiler.configurations.extern import Extern
from dispatch_profiler.configurations.flows import Flow
from dispatch_profiler.configurations.gpu_tiles import GpuTiles
from dispatch_profiler.configurations.mma_tiles import MmaTiles
from dispatch_profiler.configurations.simt_tiles import SimtTiles
from dispatch_profiler.configurations.triton_tiles import TritonTiles
from dispatch_profiler.errors import ConfigurationError, OperationError, UsageError, did_you_mean, short_repr
from dispatch_profiler.operations import KINDS, Operation, element_type

#: Configurations of one file, those of the lists that it names included.
_MOST_ENTRIES = 10_000
#: Characters of a message about one entry, which may quote what the entry says.
_MOST_CHARACTERS = 500
_NARROWING = ("kinds", "types")
_GPU: dict[str, type[GpuTiles]] = {"instruction": MmaTiles, "thread": SimtTiles}
#: keys with a list of tiles
_TILES = (
    "triton",
    "distribution",
    "vector",
    "cache",
    "workgroup",
    "reduction",
    "subgroups",
    "shape",
    "thread",
)
#: key that tells the kind of an entry -> every key that the entry may have besides
_KEYS = {
    "distribution": ("vector", "cache", "peel", "split_k"),
    **{key: tuple(f.name for f in fields(kind) if f.name != key) for key, kind in _GPU.items()},
    "triton": tuple(f.name for f in fields(TritonTiles) if f.name != "tile"),
    "extern": tuple(f.name for f in fields(Extern) if f.name != "label"),
    "list": (),
    "flow": (),
    "default": ("split_k",),
}
#: and those that it must have
_NEEDED = {
    **dict.fromkeys(_GPU, ("workgroup", "reduction")),
    "distribution": ("vector",),
    "extern": ("object", "entry", "workgroups", "workgroup_size"),
}


@dataclass(frozen=True)
class Entry:
    """A configuration with the operations that it is meant for (empty: all)."""

    configuration: Configuration
    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def is_for(self, operation: Operation) -> bool:
        return (not self.kinds or operation.kind in self.kinds) and (
            not self.types or operation.element_type.name in self.types
        )


_SHIPPED = resources.files("dispatch_profiler.configurations") / "shipped"


def shipped_lists() -> tuple[str, ...]:
    """Names of the lists that ship: families of targets, and others such as `original`."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _SHIPPED.iterdir()))


@cache
def shipped_configurations(name: str) -> tuple[Entry, ...]:
    """The package's own list for a family of targets, such as `llvm-cpu`; empty if there is none."""
    if name not in shipped_lists():
        return ()
    from dispatch_profiler.yaml_files import parse_yaml  # which only those need who generate

    file = f"{name}.yaml"
    return _parse(parse_yaml((_SHIPPED / file).read_bytes(), file), file)


def load_configurations(path: Path) -> tuple[Entry, ...]:
    """Read a user's file. ConfigurationError names the file, the entry and the key."""
    from dispatch_profiler.yaml_files import load_yaml  # which only those need who generate

    try:
        data = load_yaml(path)
    except UsageError as error:
        raise ConfigurationError(str(error), hint="--configurations takes a YAML file") from error
    folder = Path(os.path.abspath(path)).parent
    entries = _parse(data, str(path))
    found = tuple(replace(entry, configuration=_located(entry.configuration, folder)) for entry in entries)
    _check_labels({entry.configuration for entry in found}, path)
    return found


def _check_labels(configurations: set[Configuration], path: Path) -> None:
    """Two kernels of one's own may not go by one name: it becomes the function's."""
    labels = [each.label for each in configurations if isinstance(each, Extern)]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"{path}: two different kernels are called {twice!r}", hint="rename one")


def _located(configuration: Configuration, folder: Path) -> Configuration:
    """The same with the path of its object as the file in `folder` means it."""
    if not isinstance(configuration, Extern):
        return configuration
    return replace(configuration, object=str(folder / configuration.object))


def _parse(data: Any, where: str) -> tuple[Entry, ...]:
    if not isinstance(data, dict) or not isinstance(data.get("configurations"), list):
        raise ConfigurationError(
            f"{where} has no list under 'configurations'",
            hint="write 'configurations:' and below it one entry a line, "
            "such as '- {distribution: [64, 128], vector: [8, 32, 4]}'",
        )
    found: list[Entry] = []
    for i, row in enumerate(data["configurations"], 1):
        found += _entries(row, f"{where}, entry {i}")
        if len(found) > _MOST_ENTRIES:
            raise ConfigurationError(
                f"{where} has more than {_MOST_ENTRIES} configurations", hint="split the file"
            )
    return tuple(found)


def _entries(row: Any, where: str) -> tuple[Entry, ...]:
    if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
        raise ConfigurationError(f"{where}: expected keys and values, but got {short_repr(row)}")
    marker = next((key for key in _KEYS if key in row), None)
    known = [*_NARROWING, *([marker, *_KEYS[marker]] if marker else _KEYS)]
    options = {key for keys in _KEYS.values() for key in keys}
    for key in row:
        if key not in known and (marker is not None or key not in options):
            raise ConfigurationError(f"{where}: unknown key {short_repr(key)}", hint=did_you_mean(key, known))
    if marker is None:
        raise ConfigurationError(f"{where}: needs one of {', '.join(_KEYS)}")
    try:
        kinds, types = _names(row.get("kinds", ()), "kinds", KINDS), _types(row.get("types", ()))
        if marker == "list":
            return tuple(Entry(e.configuration, kinds or e.kinds, types or e.types) for e in _listed(row))
        values = {key: value for key, value in row.items() if key not in _NARROWING}
        return (Entry(_configuration(marker, values), kinds, types),)
    except (ConfigurationError, OperationError) as error:
        raise ConfigurationError(f"{where}: {str(error)[:_MOST_CHARACTERS]}", hint=error.hint) from error


def _listed(row: dict[str, Any]) -> tuple[Entry, ...]:
    check_choice("list", row["list"], shipped_lists())
    return shipped_configurations(row["list"])


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


def _configuration(marker: str, values: dict[str, Any]) -> Configuration:
    if marker == "flow":
        return Flow(str(values["flow"]))
    if marker == "default":
        if values["default"] is not True:
            raise ConfigurationError(f"default must be true, but got {short_repr(values['default'])}")
        return Default(values.get("split_k", 1))
    for key in _NEEDED.get(marker, ()):
        if key not in values:
            raise ConfigurationError(f"needs {key!r} beside {marker!r}")
    for key in _TILES:
        if not isinstance(values.get(key, []), list):
            raise ConfigurationError(f"{key} must be a list of tiles, but got {short_repr(values[key])}")
    if marker in _GPU:
        return _GPU[marker](**values)
    if marker == "extern":
        return Extern(label=values.pop("extern"), **values)
    if marker == "triton":
        return TritonTiles(tile=tuple(values.pop("triton")), **values)
    return CpuTiles(
        tuple(values["distribution"]),
        tuple(values["vector"]),
        tuple(values.get("cache", ())),
        values.get("peel", False),
        values.get("split_k", 1),
    )
