"""What every kind of configuration is: a name, compiler flags or an attribute, and validity."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from dispatch_profiler.configurations.external_kernels import KernelObject, KernelSource, Launch
from dispatch_profiler.configurations.space import Axis, Space, slices_of
from dispatch_profiler.errors import ConfigurationError, did_you_mean
from dispatch_profiler.operations import Loop, Operation

#: Tiles of one level: no operation has as many loops.
_MOST_TILES = 16


@dataclass(frozen=True)
class GpuLimits:
    """What one workgroup of a GPU may use, as the compiler sees it.

    `registers` are those of 32 bits that one thread can have, `stages` the values of
    `prefetch_num_stages` that make code of their own, `intrinsics` the compiler's names.
    `device_arch` is the GPU's own architecture, which may be newer than the one that the compiler makes
    code for, and `device_shared_bytes` what a workgroup may have there: limits of external kernels.
    """

    arch: str
    threads: int
    shared_bytes: int
    subgroup_sizes: tuple[int, ...]
    registers: int
    #: Registers of all threads of a workgroup together; 0 where it is not known.
    register_file: int
    stages: tuple[int, ...]
    intrinsics: tuple[str, ...]
    device_arch: str = ""
    device_shared_bytes: int = 0

    @property
    def device_capability(self) -> int:
        """90 for `sm_90`; 0 where the architecture has no such number."""
        digits = self.device_arch.removeprefix("sm_")
        return int(digits) if digits.isdigit() else 0


@dataclass(frozen=True)
class Limits:
    """What a target sets; None where it is not known.

    `max_vector_bytes`: the compiler refuses a vector of this many bytes or more.
    `backend`: the part of the compiler that makes the code; each has attributes and flags of its own.
    """

    max_vector_bytes: int | None = None
    backend: str = "llvm-cpu"
    gpu: GpuLimits | None = None


#: For each loop of an operation as the compiler has it, the loops that were folded into it.
Groups = tuple[tuple[int, ...], ...]
#: Name of a level -> a tile for each loop.
Levels = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Lowering:
    """Tiles that a configuration asks of the compiler, level by level, loop by loop.

    `levels["distribution"] = (64, 128, 0)` has one tile for each of `loops`; 0 leaves a loop whole.
    `options` are unit attributes of the pipeline, such as `enable_loop_peeling`.
    """

    #: Must the compiler keep pipeline and launch as asked for, or may it choose a pipeline of its own
    #: for an operation that it has folded?
    owns_translation: ClassVar[bool] = False

    dialect: str
    pipeline: str
    loops: tuple[Loop, ...]
    levels: Levels
    options: tuple[str, ...] = ()

    @property
    def root_loops(self) -> tuple[Loop, ...]:
        """Loops of the operation that carries the tiles; `loops` are those that the tiles are for."""
        return self.loops

    def folded(self, groups: Groups) -> Lowering:
        """The same for an operation with folded loops; its own loops are not known any more."""
        return replace(self, loops=(), levels=fold_levels(self.levels, groups))

    @property
    def lowering_config(self) -> str:
        """`#iree_cpu.lowering_config<distribution = [64, 128, 0], ...>`"""
        return lowering_config_text(self.dialect, self.levels)

    @property
    def translation_info(self) -> str:
        """`#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<...>[, {options}]>`"""
        options = f", {{{', '.join(self.options)}}}" if self.options else ""
        return (
            f"#iree_codegen.translation_info<pipeline = #{self.dialect}.pipeline<{self.pipeline}>{options}>"
        )

    @property
    def compilation_info(self) -> str:
        """The attribute that goes on the operation in the generated MLIR."""
        return (
            "#iree_codegen.compilation_info<"
            f"lowering_config = {self.lowering_config}, translation_info = {self.translation_info}>"
        )


def fold_levels(levels: Levels, groups: Groups) -> Levels:
    """Tiles of the real loops: the product of the tiles of the loops that were folded into each."""
    return tuple(
        (level, tuple(math.prod(tiles[i] for i in group) for group in groups)) for level, tiles in levels
    )


def lowering_config_text(dialect: str, levels: Levels) -> str:
    """One level after another, in the order given: `#iree_cpu.lowering_config<a = [1, 2], b = [0, 0]>`."""
    body = ", ".join(f"{level} = {listed(tiles)}" for level, tiles in levels)
    return f"#{dialect}.lowering_config<{body}>"


def listed(values: Sequence[int]) -> str:
    """`[1, 2]`, as MLIR writes a list."""
    return f"[{', '.join(map(str, values))}]"


def by(tiles: Sequence[int]) -> str:
    """`1x2`, as a name has it."""
    return "x".join(map(str, tiles))


@dataclass(frozen=True)
class Evidence:
    """What must stand in the compiler's own IR at `phase` if a whole-flow configuration took effect."""

    phase: str
    text: str


class Configuration(abc.ABC):
    """How the compiler may do an operation. Nothing about results.

    Subclasses are frozen dataclasses; equal fields mean the same configuration and the same name.
    `kinds.KINDS` registers them.
    """

    kind: ClassVar[str]
    #: Key that marks an entry of this kind in a configuration file, and the field that its value fills
    #: where that is called otherwise.
    yaml_key: ClassVar[str]
    yaml_field: ClassVar[str] = ""
    #: Whose kernel it is, as reports name it.
    provider: ClassVar[str] = "IREE Codegen"
    #: Columns that `fields` fills.
    field_names: ClassVar[tuple[str, ...]] = ()
    #: Slices that the reduction is split into; 1 means not split.
    split_k: int

    # -- what a kind defines ------------------------------------------------------------------

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """What a search may choose for `operation` on a target with `limits`; None if there is nothing."""
        return None

    @classmethod
    def from_yaml(cls, entry: Mapping[str, Any]) -> Configuration:
        """The configuration that an entry of a file describes, by `yaml_key` and `yaml_keys`.

        Raises ConfigurationError for a key that is missing and for a value that does not fit.
        """
        own = cls.yaml_field or cls.yaml_key
        values = {own if key == cls.yaml_key else key: value for key, value in entry.items()}
        for field in fields(cls):  # type: ignore[arg-type]
            if field.default is MISSING and field.name not in values:
                raise ConfigurationError(f"needs {field.name!r} beside {cls.yaml_key!r}")
        return cls(**values)

    @classmethod
    def yaml_keys(cls) -> tuple[str, ...]:
        """Keys that an entry may have beside `yaml_key`: the fields."""
        own = cls.yaml_field or cls.yaml_key
        return tuple(each.name for each in fields(cls) if each.name != own)  # type: ignore[arg-type]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A label that holds every field: `tile_config_64x128_8x32x4`."""

    @abc.abstractmethod
    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        """Why this cannot be used for `operation`, with the values; None if it can."""

    # -- what most kinds leave as it is ---------------------------------------------------------

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags beside the target's. Dispatches with the same flags share a module."""
        return ()

    @property
    def module(self) -> str:
        """Name of the module that holds dispatches with these flags; "" for the plain one."""
        return ""

    @property
    def evidence(self) -> Evidence | None:
        """How to see that `flags` took effect; None where there are none."""
        return None

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        """Why the compiler has no code for this on the target, though it fits `operation`.

        The generator leaves invalid configurations out. It emits unsupported ones, which are
        `Not compiled` with this reason, so that a request by name gets an explanation.
        """
        return None

    def effective_operation(self, operation: Operation) -> Operation:
        """What a kernel with this configuration computes: `operation`, maybe with narrower sums.

        Results are verified against this.
        """
        return operation

    def lowering(self, operation: Operation) -> Lowering | None:
        """The tiles asked for; None leaves the choice to the compiler."""
        return None

    def launch(self, operation: Operation) -> Launch | None:
        """How an external kernel is started; None where IREE makes the code."""
        return None

    def kernel(self, operation: Operation) -> KernelSource | KernelObject | None:
        """That kernel: a source of ours for Triton, or an object that is there; None likewise."""
        return None

    def split(self, slices: int) -> Configuration | None:
        """The same with the reduction cut into `slices`; None if it cannot be, or is cut already."""
        can = self.split_k == 1 and any(each.name == "split_k" for each in fields(self))  # type: ignore[arg-type]
        return replace(self, split_k=slices) if can else None  # type: ignore[type-var]

    def fields(self) -> dict[str, str]:
        """Columns of the report that describe the tiles, by `field_names`."""
        return {}

    def located(self, folder: Path) -> Configuration:
        """The same with its paths as a file in `folder` means them."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest; `configuration_from_dict` reads it back."""
        data: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            data[field.name] = list(value) if isinstance(value, tuple) else value
        return data


def check_tiles(field: str, tiles: Any) -> tuple[int, ...]:
    """A list of tiles as a tuple. ConfigurationError unless each is a whole number of at least 1."""
    if not isinstance(tiles, (list, tuple)):
        raise ConfigurationError(f"{field} must be a list of tiles, but got {tiles!r}")
    if len(tiles) > _MOST_TILES:
        raise ConfigurationError(f"{field}: {len(tiles)} tiles are more than {_MOST_TILES}")
    if any(type(tile) is not int or tile < 1 for tile in tiles):
        raise ConfigurationError(
            f"{field}: every tile must be a whole number of at least 1, but got {list(tiles)}"
        )
    return tuple(tiles)


def check_choice(field: str, value: Any, choices: Sequence[Any]) -> None:
    """ConfigurationError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(
            f"unknown {field} {value!r}", hint=did_you_mean(str(value), list(map(str, choices)))
        )


def check_split(split_k: int) -> None:
    """ConfigurationError unless it is a whole number of at least 1."""
    if type(split_k) is not int or split_k < 1:
        raise ConfigurationError(f"split_k must be a whole number of at least 1, but got {split_k!r}")


def split_suffix(split_k: int) -> str:
    """What a split adds to a configuration's name."""
    return f"_splitk{split_k}" if split_k > 1 else ""


def split_loops(operation: Operation, split_k: int) -> tuple[Loop, ...]:
    """Loops of `operation` with its reduction cut into `split_k` slices, done side by side.

    split_k=4:  m, n, k=128  ->  split=4, m, n, k=32
    """
    if split_k == 1:
        return operation.loops
    cut = (
        Loop(loop.name, loop.extent // split_k, loop.iterator) if loop.iterator == "reduction" else loop
        for loop in operation.loops
    )
    return (Loop("split", split_k, "parallel"), *cut)


def split_invalid_reason(operation: Operation, split_k: int) -> str | None:
    """Only a plain matmul is split, into slices of equal length."""
    if split_k == 1:
        return None
    if operation.product is None or operation.product.is_batched:
        return f"split-k is defined for matmul, not for {operation.kind}"
    if operation.accumulations % split_k:
        return f"{split_k} slices do not divide k={operation.accumulations}"
    return None


def contraction_invalid_reason(what: str, operation: Operation) -> str | None:
    """`what` is defined for matrix products and convolutions only."""
    if operation.contraction is not None:
        return None
    return f"{what} matrix products and convolutions, not {operation.kind}"


def backend_invalid_reason(what: str, backend: str, limits: Limits) -> str | None:
    """`what` means something to one backend only; another would refuse it, or do nothing with it."""
    return None if limits.backend == backend else f"{what} for {backend}, but the target is {limits.backend}"


@dataclass(frozen=True)
class Default(Configuration):
    """The compiler's own choice; with `split_k`, its own choice for the split product."""

    kind: ClassVar[str] = "default"
    yaml_key: ClassVar[str] = "default"

    split_k: int = 1

    def __post_init__(self) -> None:
        check_split(self.split_k)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        return Space(cls, (Axis("split_k", slices_of(operation)),))

    @classmethod
    def from_yaml(cls, entry: Mapping[str, Any]) -> Configuration:
        if entry["default"] is not True:
            raise ConfigurationError(f"default must be true, but got {entry['default']!r}")
        return cls(entry.get("split_k", 1))

    @property
    def name(self) -> str:
        return "tile_config_default" + split_suffix(self.split_k)

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        return split_invalid_reason(operation, self.split_k)
