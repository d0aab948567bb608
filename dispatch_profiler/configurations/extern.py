"""A user's kernel: an object file with its launch shape, as a configuration."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    KernelObject,
    Launch,
    Limits,
    backend_invalid_reason,
    by,
    check_whole,
    epilogue_invalid_reason,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Operation

_NAME = re.compile(r"[A-Za-z]\w{,99}", re.ASCII)
_ARCH = re.compile(r"sm_(\d{2,4})[a-z]?", re.ASCII)
#: Maximum characters of an expression, which bounds its depth and value.
_MAX_CHARACTERS = 200
#: Bytes behind a spare pointer without a size: enough for a pointer that is never read.
_SPARE = 16
#: CUDA's limits along x, y and z (CUDA C++ Programming Guide).
_MAX_WORKGROUPS = (2**31 - 1, 65535, 65535)
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, kw_only=True)
class Extern(Configuration):
    """label           name of the configuration
    object          path of a PTX file or of machine code (a cubin)
    entry           name of the kernel in the object
    workgroups      up to three counts: numbers, or expressions of the operation's loops ("ceildiv(m, 128)")
    workgroup_size  threads along x, y and z
    shared_memory   bytes of dynamic shared memory
    target_arch     architecture of the object
    spare_bindings  extra pointers after the result's: their number, or the bytes behind each

    The kernel takes pointers to lhs, rhs, the bias (if any) and the result, and writes all of the result.
    """

    kind: ClassVar[str] = "extern"
    yaml_key: ClassVar[str] = "extern"
    can_be_inner: ClassVar[bool] = False
    names_code: ClassVar[bool] = True
    yaml_field: ClassVar[str] = "label"
    provider: ClassVar[str] = "Extern"

    label: str
    object: str
    entry: str
    workgroups: tuple[int | str, ...]
    workgroup_size: tuple[int, ...]
    shared_memory: int = 0
    target_arch: str = "sm_80"
    spare_bindings: int | tuple[int, ...] = 0
    split_k: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.label, str) or not _NAME.fullmatch(self.label):
            raise ConfigurationError(
                f"name must be letters, digits and _, but got {self.label!r}",
                hint="start with a letter, and use at most 100 characters",
            )
        if not isinstance(self.entry, str) or not re.fullmatch(r"[\w$]+", self.entry):
            raise ConfigurationError(f"entry must be the name of a kernel, but got {self.entry!r}")
        if not isinstance(self.object, str) or not self.object:
            raise ConfigurationError(f"object must be the path of a file, but got {self.object!r}")
        if not _ARCH.fullmatch(str(self.target_arch)):
            raise ConfigurationError(f"target_arch must have the form sm_90, but got {self.target_arch!r}")
        self._check_launch()
        check_whole("split_k", self.split_k)
        if self.split_k != 1:
            raise ConfigurationError("split_k does not apply to an external kernel: leave it out")

    def _check_launch(self) -> None:
        for name in ("workgroups", "workgroup_size"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= 3:
                raise ConfigurationError(f"{name} must be one to three numbers, but got {value!r}")
            object.__setattr__(self, name, tuple(value))
        for count in self.workgroups:
            _parse(count)
        if isinstance(self.spare_bindings, list):
            object.__setattr__(self, "spare_bindings", tuple(self.spare_bindings))
        spares = self.spare_bindings
        sizes = spares if isinstance(spares, tuple) else (spares,)
        whole = (*self.workgroup_size, self.shared_memory, *sizes)
        if any(type(x) is not int or x < 0 for x in whole) or 0 in self.workgroup_size:
            raise ConfigurationError(
                "workgroup_size, shared_memory and spare_bindings must be whole numbers, but got "
                f"{list(self.workgroup_size)}, {self.shared_memory!r}, {spares!r}"
            )

    def located(self, folder: Path) -> Configuration:
        return replace(self, object=str(folder / self.object))

    @property
    def name(self) -> str:
        return f"extern_{self.label}"

    @property
    def module(self) -> str:
        # Its own module: if the driver rejects it, other dispatches are unaffected.
        return self.name

    def split(self, slices: int) -> Configuration | None:
        return None

    def launch(self, operation: Operation) -> Launch:
        spares = self.spare_bindings
        return Launch(
            entry=self.entry,
            workgroups=_three([_value(_parse(x), _extents(operation)) for x in self.workgroups]),
            workgroup_size=_three(self.workgroup_size),
            shape=operation.results[0].shape,
            type=operation.results[0].type,
            scratch=spares if isinstance(spares, tuple) else (_SPARE,) * spares,
        )

    def kernel(self, operation: Operation) -> KernelObject:
        return KernelObject(self.object, self.target_arch, self.shared_memory)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason(f"{self.name} is", "cuda", limits)
        if foreign or limits.gpu is None:
            return foreign
        lacking = epilogue_invalid_reason(f"{self.name} has", operation)
        if lacking:
            return lacking
        try:
            workgroups = self.launch(operation).workgroups
        except (ConfigurationError, ZeroDivisionError) as error:
            return f"workgroups of {self.name} cannot be computed for {operation.name}: {error}"
        gpu, threads = limits.gpu, self.workgroup_size
        needed = int(_ARCH.fullmatch(self.target_arch)[1])  # type: ignore[index]
        if needed > gpu.device_capability:
            return f"{self.name} is for {self.target_arch}, but the target is {gpu.device_arch}"
        if any(not 1 <= n <= most for n, most in zip(workgroups, _MAX_WORKGROUPS, strict=True)):
            return f"{by(workgroups)} workgroups, but a launch allows 1 to {by(_MAX_WORKGROUPS)}"
        if math.prod(threads) > gpu.threads:
            return f"a workgroup of {by(threads)} threads, but {gpu.device_arch} allows {gpu.threads}"
        if self.shared_memory > gpu.device_shared_bytes:
            return (
                f"{self.name} needs {self.shared_memory} B of shared memory, but {gpu.device_arch} has "
                f"{gpu.device_shared_bytes}"
            )
        return None

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        return None if Path(self.object).is_file() else f"no such file: {self.object}"


def _three(values: list[int] | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _extents(operation: Operation) -> dict[str, int]:
    return {loop.name: loop.extent for loop in operation.loops}


def _parse(text: int | str) -> ast.expr:
    """Parse a count. Raises ConfigurationError unless it consists of numbers, loops and arithmetic."""
    if len(str(text)) > _MAX_CHARACTERS:
        raise ConfigurationError(f"workgroups: an expression has more than {_MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(str(text), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # a NUL; too many brackets
        raise ConfigurationError(f"workgroups: {text!r} is not an expression") from error
    _value(tree, None)
    return tree


def _value(tree: ast.expr, extents: dict[str, int] | None) -> int:
    """The value of an expression; without `extents`, only check it."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name):
        if extents is not None and tree.id not in extents:
            raise ConfigurationError(f"no loop {tree.id}; available: {', '.join(extents)}")
        return 1 if extents is None else extents[tree.id]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _value(tree.left, extents), _value(tree.right, extents)
        return 1 if extents is None else _OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "ceildiv" and len(tree.args) == 2:
        left, right = (_value(each, extents) for each in tree.args)
        return 1 if extents is None else -(-left // right)
    raise ConfigurationError(
        f"workgroups: cannot read {ast.unparse(tree)!r}",
        hint="write numbers, loops (m, n, k), + - * // % and ceildiv(a, b)",
    )
