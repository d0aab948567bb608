"""The base class of configurations: a name, compiler flags or an attribute, and validity rules."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dispatch_profiler.configurations.forms.builder import Reduction, Step
from dispatch_profiler.configurations.lowering import Lowering
from dispatch_profiler.configurations.space import Space
from dispatch_profiler.configurations.splits import sliced_bound
from dispatch_profiler.errors import ConfigurationError, did_you_mean
from dispatch_profiler.operations import ElementType, ErrorBound, Operation, Tensor


@dataclass(frozen=True)
class Launch:
    """How `hal.dispatch.extern` launches a kernel.

    The kernel takes a pointer for each operand, one for its output, and one for each entry of `scratch`
    (sizes in bytes), in this order. If the operation has several results, the kernel also takes a pointer for
    each of `more`, the results after the first, before the scratch memory. Its output has `shape` and `type`:
    the result, or for a split reduction the sums of each slice, which IREE's code then adds up.
    """

    entry: str
    workgroups: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    shape: tuple[int, ...]
    type: ElementType
    scratch: tuple[int, ...] = ()
    more: tuple[Tensor, ...] = ()

    @property
    def mlir(self) -> str:
        """The type of the output: `tensor<4x256x128xf32>`."""
        return f"tensor<{'x'.join(map(str, self.shape))}x{self.type.name}>"


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel: its name in this package's sources, constants and options, without any Triton object.

    `types` has the types of its pointers, by parameter; all other parameters are constants. The pointers of
    `operands`, which follow each other among `types`, are one parameter of this name, a tuple. With `l1`, its
    asynchronous copies also keep the loaded data in the L1 cache. A launch has `programs` workgroups. If
    `counters` is not 0, the kernel's pointer `arrivals` is not passed: it points to `counters` counters of
    the module, which are 0 when the module is loaded.
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool | str | None], ...]
    warps: int
    stages: int
    operands: tuple[str, ...] = ()
    l1: bool = False
    programs: int = 1
    counters: int = 0


@dataclass(frozen=True)
class KernelObject:
    """A compiled kernel: a file of PTX or machine code, and the resources that it needs."""

    path: str
    target_arch: str
    shared_bytes: int


#: Maximum tiles per level; no operation has as many loops.
_MAX_TILES = 16


@dataclass(frozen=True)
class GpuLimits:
    """Resources that one workgroup of a GPU may use, as reported by the compiler.

    `registers` is the number of 32-bit registers per thread, `stages` holds the values of
    `prefetch_num_stages` that generate different code, `intrinsics` the compiler's names. External kernels
    are limited by `device_arch`, the GPU's own architecture, which may be newer than the compiler's target,
    and by `device_shared_bytes`, its shared memory per workgroup.
    """

    arch: str
    threads: int
    shared_bytes: int
    subgroup_sizes: tuple[int, ...]
    registers: int
    #: Registers per workgroup; 0 if unknown.
    register_file: int
    stages: tuple[int, ...]
    intrinsics: tuple[str, ...]
    device_arch: str = ""
    device_shared_bytes: int = 0

    @property
    def device_capability(self) -> int:
        """90 for `sm_90`; 0 if the architecture has no such number."""
        digits = self.device_arch.removeprefix("sm_")
        return int(digits) if digits.isdigit() else 0


@dataclass(frozen=True)
class Limits:
    """Limits of a target; None if unknown.

    `vector_bytes`: the width of a native vector. The compiler rejects vectors of `max_vector_bytes` or more.
    `backend`: the compiler's code generator; each has its own attributes and flags.
    `multiplies_bf16`: whether a CPU is known to have instructions that add products of bf16 in f32.
    `has_fast_bf16`: whether these instructions multiply bf16 faster than others multiply f32. On Zen 4, microkernels with
    them are twice as fast as those of f32; on Xeons, where an instruction takes four times as long, half as fast.
    `multiplies_i8`: whether a CPU is known to have instructions that add products of i8 in i32, of the width of its vectors.
    `amx_types`: the types of factors for which a CPU has AMX, which this process may use.
    """

    max_vector_bytes: int | None = None
    backend: str = "llvm-cpu"
    gpu: GpuLimits | None = None
    vector_bytes: int | None = None
    multiplies_bf16: bool = False
    has_fast_bf16: bool = False
    multiplies_i8: bool = False
    amx_types: tuple[str, ...] = ()


def by(tiles: Sequence[int]) -> str:
    """`1x2`, as written in names."""
    return "x".join(map(str, tiles))


@dataclass(frozen=True)
class Evidence:
    """Text that the compiler's IR contains at `phase` if a whole-flow configuration took effect."""

    phase: str
    text: str


class Configuration(abc.ABC):
    """How the compiler may implement an operation. It says nothing about results.

    Subclasses are frozen dataclasses; equal fields mean the same configuration and the same name.
    `kinds.KINDS` registers them.
    """

    kind: ClassVar[str]
    #: Key that marks entries of this kind in a configuration file (empty: no entry has this kind), and the
    #: field that the key's value sets if the field has another name.
    yaml_key: ClassVar[str]
    yaml_field: ClassVar[str] = ""
    #: Provider of the kernel, as named in reports.
    provider: ClassVar[str] = "IREE Codegen"
    #: Whether it can configure the kernels of a form (see `formed`).
    can_be_inner: ClassVar[bool] = True
    #: Whether the generator writes it. Otherwise its function is in a separate file, and its module is separate too.
    is_generated: ClassVar[bool] = True
    #: Whether it names a file whose code is executed: a library, which is data, may not have it.
    names_code: ClassVar[bool] = False
    #: Template of the functions with this configuration; empty: the template of the operation's kind.
    template: ClassVar[str] = ""
    #: Suffix of the kernel that the template writes for each function, in MLIR; empty if the compiler generates it.
    kernel_suffix: ClassVar[str] = ""
    #: Columns in `fields`.
    field_names: ClassVar[tuple[str, ...]] = ()
    #: Slices that the reduction is split into; 1 means not split.
    split_k: int

    def kernel_names(self, function: str) -> tuple[str, ...]:
        """The kernels that the template writes for `function`, in MLIR; empty if the compiler generates them."""
        return (function + self.kernel_suffix,) if self.kernel_suffix else ()

    # -- what a kind defines ------------------------------------------------------------------

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """The search space for `operation` on a target with `limits`; None if this kind has no space."""
        return None

    @classmethod
    def spaces(cls, operation: Operation, limits: Limits) -> Iterator[Space[Configuration]]:
        """The search spaces of this kind: `space`, unless the kind has several for one operation."""
        space = cls.space(operation, limits)
        if space is not None:
            yield space

    @classmethod
    def packed_spaces(cls, operation: Operation, limits: Limits) -> Iterator[Space[Configuration]]:
        """The search spaces of configurations that pack the weight, which `spaces` omits."""
        space = cls.packed_space(operation, limits)
        if space is not None:
            yield space

    @classmethod
    def packed_space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        """Like `space`, for configurations that pack the weight."""
        return None

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[Configuration, ...]:
        """Valid configurations that a search should try first, the likeliest first; empty without such a rule.

        With `packed_weights`, for operations whose weight is constant, they pack it where that is possible.
        """
        return ()

    @classmethod
    def from_yaml(cls, entry: Mapping[str, Any]) -> Configuration:
        """The configuration of a file's entry, which has `yaml_key` and any of `yaml_keys`.

        Raises ConfigurationError for a missing key or an invalid value.
        """
        own = cls.yaml_field or cls.yaml_key
        values = {own if key == cls.yaml_key else key: value for key, value in entry.items()}
        for field in fields(cls):  # type: ignore[arg-type]
            if field.default is MISSING and field.name not in values:
                raise ConfigurationError(f"{cls.yaml_key!r} also needs {field.name!r}")
        return cls(**values)

    @classmethod
    def yaml_keys(cls) -> tuple[str, ...]:
        """Keys that an entry may have in addition to `yaml_key`: the fields."""
        own = cls.yaml_field or cls.yaml_key
        return tuple(each.name for each in fields(cls) if each.name != own)  # type: ignore[arg-type]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A label that includes every field: `tile_config_64x128_8x32x4`."""

    @abc.abstractmethod
    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        """Why this cannot be used for `operation`, with the values; None if it can."""

    # -- defaults -------------------------------------------------------------------------------

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags in addition to the target's. Dispatches with the same flags share a module."""
        return ()

    @property
    def module(self) -> str:
        """Name of the module that holds dispatches with these flags; "" for the default module."""
        return ""

    @property
    def evidence(self) -> Evidence | None:
        """Evidence that `flags` took effect; None without flags."""
        return None

    def unsupported_reason(self, operation: Operation, limits: Limits) -> str | None:
        """Why the compiler cannot generate code for this configuration, although it is valid.

        The generator omits invalid configurations. It emits unsupported ones, which are reported as
        `Not compiled` with this reason, so that a request by name gets an explanation.
        """
        return None

    def rejected_in(self, form: str) -> str | None:
        """Why this cannot configure the kernels of `form`, whatever they are; None if it can."""
        return None

    def effective_operation(self, operation: Operation) -> Operation:
        """The operation that a kernel with this configuration computes, possibly with narrower sums.

        Results are verified against it.
        """
        return operation

    def slices(self, operation: Operation) -> int:
        """Slices that the reduction of `operation` is split into: `split_k`, or as many as a long sum needs."""
        return self.split_k

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        """A bound on the error of the sums; None if the operation's own bound applies."""
        return sliced_bound(operation, self.slices(operation))

    def flops(self, operation: Operation) -> int:
        """FLOP that a kernel computes at least: the operation's, unless the kernel has another algorithm."""
        return operation.flops

    def multiplied(self, operation: Operation) -> ElementType:
        """Type of the factors of a kernel, whose peak limits it: the operands' type, unless it splits operands."""
        return operation.element_type

    def lowering(self, operation: Operation) -> Lowering | None:
        """The requested tiles; None leaves the choice to the compiler."""
        return None

    def tiling(self, operation: Operation) -> Lowering | None:
        """The tiles that describe this configuration in models of speed: by default the requested tiles."""
        return self.lowering(operation)

    def lowerings(self, operation: Operation) -> tuple[Lowering, ...]:
        """The requested tiles of every kernel: one, unless the configuration has a form."""
        lowering = self.lowering(operation)
        return () if lowering is None else (lowering,)

    def reduced(self, operation: Operation) -> Reduction | None:
        """The kernels and other steps of a form; None for the direct form, which the operation's template computes."""
        return None

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        """The steps that pack the weight, ending in barriers; empty if executions read the weight as it is stored."""
        reduction = self.reduced(operation)
        return reduction.packing if reduction else ()

    def preparation(self, operation: Operation) -> tuple[Step, ...]:
        """The steps ahead of the kernel of a template: those of `packing`, also if every call packs the weight."""
        return self.packing(operation)

    @property
    def packs_weight(self) -> bool:
        """Whether the weight is packed at load time, so that it must be constant and no execution includes it."""
        return False

    def with_packed_weight(self, operation: Operation) -> Configuration | None:
        """This configuration with the weight packed at load time; None if nothing can be packed, or if it packs already."""
        return None

    @property
    def kernel_configuration(self) -> Configuration:
        """The configuration of each kernel: this configuration, unless it has a form."""
        return self

    def launch(self, operation: Operation) -> Launch | None:
        """The launch of an external kernel, or of the first of several; None if IREE generates the code."""
        return None

    def kernel(self, operation: Operation) -> KernelSource | KernelObject | None:
        """The kernel of `launch`, as Triton source or as an object file; None if IREE generates the code."""
        return None

    def launches(self, operation: Operation) -> tuple[Launch, ...]:
        """The launches of all external kernels, in their order; empty if IREE generates the code."""
        launch = self.launch(operation)
        return () if launch is None else (launch,)

    def kernels(self, operation: Operation) -> tuple[KernelSource | KernelObject, ...]:
        """The external kernel of each launch."""
        kernel = self.kernel(operation)
        return () if kernel is None else (kernel,)

    def split(self, slices: int) -> Configuration | None:
        """This configuration with the reduction split into `slices`; None if it is split or cannot be."""
        can_split = self.split_k == 1 and any(each.name == "split_k" for each in fields(self))  # type: ignore[arg-type]
        return replace(self, split_k=slices) if can_split else None  # type: ignore[type-var]

    def fields(self) -> dict[str, str]:
        """Report columns that describe the configuration: name -> value, for names in `field_names`."""
        return {}

    def located(self, folder: Path) -> Configuration:
        """This configuration with relative paths resolved against `folder`."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest; `configuration_from_dict` reads it back."""
        data: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Configuration):
                value = value.to_dict()
            data[field.name] = list(value) if isinstance(value, tuple) else value
        # Without the key, a kernel whose weight is not packed has the same data as in earlier versions.
        return data if data.get("packed", True) else {key: data[key] for key in data if key != "packed"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        """Inverse of `to_dict`, without its `kind`."""
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


_C = TypeVar("_C", bound=type[Configuration])


def answered_by_inner(*names: str) -> Callable[[_C], _C]:
    """A decorator of classes whose field `inner`, another configuration, has these properties and methods."""

    def decorate(kind: _C) -> _C:
        for name in names:
            setattr(kind, name, property(attrgetter(f"inner.{name}")))
        return kind

    return decorate


def check_tiles(field: str, tiles: Any) -> tuple[int, ...]:
    """Convert a list of tiles to a tuple. Raises ConfigurationError unless each is an int of at least 1."""
    if not isinstance(tiles, (list, tuple)):
        raise ConfigurationError(f"{field} must be a list of tiles, but got {tiles!r}")
    if len(tiles) > _MAX_TILES:
        raise ConfigurationError(f"{field} has {len(tiles)} tiles, but at most {_MAX_TILES} are allowed")
    if any(type(tile) is not int or tile < 1 for tile in tiles):
        raise ConfigurationError(
            f"{field}: every tile must be a whole number of at least 1, but got {list(tiles)}"
        )
    return tuple(tiles)


class WrittenKernel(Configuration):
    """A kernel of vector or tile instructions for CPUs that a template of this package writes, with tiles of two levels.

    Subclasses are dataclasses with the fields `distribution`, the tiles of a workgroup, and `registers`.
    """

    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("distribution_tile", "vector_tile")
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    distribution: tuple[int, ...]
    registers: tuple[int, ...]

    def fields(self) -> dict[str, str]:
        return dict(zip(self.field_names, (by(self.distribution), by(self.registers)), strict=True))


def convert_tiles(configuration: Configuration, what: str, **counts: int) -> None:
    """Convert fields of a frozen configuration to tuples of so many tiles: `convert_tiles(self, "a microkernel", registers=3)`.

    Raises ConfigurationError for others.
    """
    for field, count in counts.items():
        tiles = check_tiles(field, getattr(configuration, field))
        if len(tiles) != count:
            raise ConfigurationError(f"{field} of {what} has {count} tiles, but got {list(tiles)}")
        object.__setattr__(configuration, field, tiles)


def check_choice(field: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ConfigurationError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(
            f"unknown {field} {value!r}", hint=did_you_mean(str(value), list(map(str, choices)))
        )


def check_flag(field: str, value: Any) -> None:
    """Raise ConfigurationError unless `value` is True or False: 1 would be another key of the cache."""
    if type(value) is not bool:
        raise ConfigurationError(f"{field} must be true or false, but got {value!r}")


def check_whole(field: str, value: Any, least: int = 1) -> None:
    """Raise ConfigurationError unless `value` is an int of at least `least`."""
    if type(value) is not int or value < least:
        raise ConfigurationError(f"{field} must be a whole number of at least {least}, but got {value!r}")


def contraction_invalid_reason(what: str, operation: Operation) -> str | None:
    """A reason unless `operation` is a matrix product, or a forward conv2d in nhwc or nchw.

    `what` is its first words.
    """
    if operation.contraction is None:
        return f"{what} matrix products and convolutions, not {operation.kind}"
    convolution = operation.convolution
    if convolution is None or (convolution.is_canonical and convolution.spatial_rank == 2):
        return None
    if convolution.spatial_rank != 2 or convolution.mode != "forward":
        mode = "" if convolution.mode == "forward" else f" {convolution.mode}"
        return f"{what} forward conv2d and matrix products, not {operation.kind}{mode}"
    layouts = (convolution.input_layout, convolution.filter_layout, convolution.output_layout)
    return f"{what} convolutions in the layouts nhwc and nchw, not {'_'.join(layouts)}"


def epilogue_invalid_reason(what: str, operation: Operation) -> str | None:
    """Why a kernel that computes at most a bias and then a step without operands cannot compute the epilogue.

    `what` is its first words.
    """
    if operation.contraction is None:
        return None
    epilogue = operation.contraction.epilogue
    lacking = [step for step in epilogue.steps if step.name != "bias" and step.has_operands]
    if lacking:
        return f"{what} no step {lacking[0]}, only a bias and then one activation"
    if epilogue.bias_and_activation is None:
        return f"{what} only a bias and then one activation, but the epilogue is {epilogue}"
    return None


def backend_invalid_reason(what: str, backend: str, limits: Limits) -> str | None:
    """A reason unless the target has `backend`; others would reject or ignore the configuration.

    `what` is its first words.
    """
    return None if limits.backend == backend else f"{what} for {backend}, but the target is {limits.backend}"


#: `Configuration.kind` -> class. Importing any module of this package imports `kinds`, which fills it.
KINDS: dict[str, type[Configuration]] = {}


def configuration_from_dict(data: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.to_dict`."""
    values = dict(data)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise ConfigurationError(f"unknown configuration kind {kind!r}", hint=did_you_mean(kind, KINDS))
    return KINDS[kind].from_dict(values)
