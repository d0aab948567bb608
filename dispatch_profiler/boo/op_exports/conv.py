"""Convolutions, and transposed ones, with one to three spatial axes in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

from dispatch_profiler.boo.op_exports._base import (
    TORCH_NAMES,
    Mode,
    OpSignature,
    joined,
    sizes,
    switch,
    type_name,
)
from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads.miopen import ConvProblem

_DEFAULT_LAYOUTS = {3: "NCH", 4: "NCHW", 5: "NCDHW"}
_SPATIAL = {3: "H", 4: "HW", 5: "DHW"}
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


@dataclass(frozen=True, kw_only=True)
class ConvSignature(OpSignature):
    """A convolution of `input_shape` with filters of `kernel_shape`.

    Layouts are permutations of NCH, NCHW or NCDHW (N, C and the spatial axes); a filter has its outputs along N and
    its inputs, divided by `groups`, along C. A filter of a transposed convolution has its inputs along N and its outputs,
    divided by `groups`, along C, as in torch. `shared_layout` replaces the layouts that are not given. `stride`,
    `padding`, `dilation` and `output_padding` are one number, or one for each spatial axis in the order D, H, W.

    Launches take `(x, w[, b])`; `(dLdy, w)` with mode `bwd`; `(dLdy, x)` with `wrw`; and `(dLdy,)` with `bias_backward`.
    The bias is part of the forward only. Raises UsageError if shapes and layouts do not fit each other, and
    OperationError, on first use, if there is no such convolution.
    """

    problem_type: ClassVar = ConvProblem

    input_shape: Sequence[int]
    kernel_shape: Sequence[int]
    shared_layout: InitVar[str | None] = None
    input_layout: str | None = None
    kernel_layout: str | None = None
    output_layout: str | None = None
    bias: bool = False
    dtype: Any = "bf16"
    stride: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    dilation: int | Sequence[int] = 1
    transposed: bool = False
    output_padding: int | Sequence[int] = 0
    groups: int = 1
    mode: Any = Mode.FORWARD

    def __post_init__(self, shared_layout: str | None) -> None:
        shape, kernel = sizes("input_shape", self.input_shape), sizes("kernel_shape", self.kernel_shape)
        parsed = {
            "input_shape": shape,
            "kernel_shape": kernel,
            "dtype": type_name(self.dtype),
            "mode": Mode.parse(self.mode),
            "bias": switch("bias", self.bias),
            "transposed": switch("transposed", self.transposed),
            "groups": sizes("groups", [self.groups])[0],
        }
        axes = len(shape)
        if axes not in _SPATIAL or len(kernel) != axes:
            raise UsageError(
                "input_shape and kernel_shape of a convolution have 3, 4 or 5 numbers each, but got "
                f"{self.input_shape} and {self.kernel_shape}"
            )
        for name in ("input_layout", "kernel_layout", "output_layout"):
            own = getattr(self, name)
            parsed[name] = _layout(name, shared_layout if own is None else own, axes)
        for name, default in _DEFAULTS.items():
            parsed[name] = _each_axis(name, getattr(self, name), axes - 2, default)
        self._set(parsed)
        self._check_channels()

    def _check_channels(self) -> None:
        images, weights = self._by_letter("input"), self._by_letter("kernel")
        inputs = weights["N"] if self.transposed else weights["C"] * self.groups
        if inputs != images["C"]:
            expected = "N" if self.transposed else "C times groups"
            raise UsageError(
                f"the input has {images['C']} channels, but the kernel's {expected} is {inputs}",
                hint=f"input {self.input_shape} is read as {self.input_layout}, kernel {self.kernel_shape} as "
                f"{self.kernel_layout}, with {self.groups} groups",
            )

    def _by_letter(self, role: str) -> dict[str, int]:
        return dict(zip(getattr(self, f"{role}_layout"), getattr(self, f"{role}_shape"), strict=True))

    @property
    def problem(self) -> ConvProblem:
        """See `OpSignature.problem`."""
        images, weights, axes = (
            self._by_letter("input"),
            self._by_letter("kernel"),
            _SPATIAL[len(self.input_shape)],
        )
        return ConvProblem(
            images=images["N"],
            channels=images["C"],
            filters=weights["C"] * self.groups if self.transposed else weights["N"],
            pixels=tuple(images[axis] for axis in axes),
            window=tuple(weights[axis] for axis in axes),
            layouts=(
                _ours(self.input_layout, "n"),
                _ours(self.kernel_layout, "f"),
                _ours(self.output_layout, "n"),
            ),
            type=self.dtype,
            stride=self.stride,  # type: ignore[arg-type]
            padding=self.padding,  # type: ignore[arg-type]
            dilation=self.dilation,  # type: ignore[arg-type]
            output_padding=self.output_padding,  # type: ignore[arg-type]
            groups=self.groups,
            has_bias=self.bias,
            is_transposed=self.transposed,
        )

    @classmethod
    def of_problem(cls, problem: ConvProblem, mode: Mode) -> ConvSignature:
        """See `OpSignature.of_problem`."""
        axes = problem.rank + 2
        input_, kernel, output = (_theirs(each) for each in problem.layouts)
        channels, filters, groups = problem.channels, problem.filters, problem.groups
        outer, inner = (
            (channels, filters // groups) if problem.is_transposed else (filters, channels // groups)
        )
        images = {
            "N": problem.images,
            "C": channels,
            **dict(zip(_SPATIAL[axes], problem.pixels, strict=True)),
        }
        weights = {"N": outer, "C": inner, **dict(zip(_SPATIAL[axes], problem.window, strict=True))}
        return cls(
            input_shape=[images[letter] for letter in input_],
            kernel_shape=[weights[letter] for letter in kernel],
            input_layout=input_,
            kernel_layout=kernel,
            output_layout=output,
            bias=problem.has_bias,
            dtype=problem.type,
            stride=problem.stride,
            padding=problem.padding,
            dilation=problem.dilation,
            transposed=problem.is_transposed,
            output_padding=problem.output_padding,
            groups=groups,
            mode=mode,
        )

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the forward's result, in the output's layout."""
        return self.problem.operation(Mode.FORWARD.value).results[0].shape

    @property
    def func_name(self) -> str:
        """`conv_2d_bfloat16_forward_2x16x32x3_nhwc_10x2x2x3_fhwc_nhwf_1x1s_0x0p_1x1d_1g`."""
        return "_".join(
            [
                f"conv_{len(self.input_shape) - 2}d",
                *(["transposed"] if self.transposed else []),
                TORCH_NAMES[self.dtype],
                self.mode.value,
                *(["b"] if self.bias else []),
                joined(self.input_shape),
                str(self.input_layout).lower(),
                joined(self.kernel_shape),
                str(self.kernel_layout).lower().replace("n", "f"),
                str(self.output_layout).lower().replace("c", "f"),
                f"{joined(self.stride)}s",  # type: ignore[arg-type]
                f"{joined(self.padding)}p",  # type: ignore[arg-type]
                f"{joined(self.dilation)}d",  # type: ignore[arg-type]
                *([f"{joined(self.output_padding)}op"] if self.transposed else []),  # type: ignore[arg-type]
                f"{self.groups}g",
            ]
        )

    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        x, w, y = tuple(self.input_shape), tuple(self.kernel_shape), self.output_shape
        outputs = dict(zip(str(self.output_layout), y, strict=True))["C"]
        if self.mode is Mode.FORWARD:
            bias = [("b", (outputs,), 2)] if self.bias else []
            return [("x", x, 0), ("w", w, 1), *bias], [("y", y)]
        if self.mode is Mode.INPUT_BACKWARD:
            return [("dLdy", y, 0), ("w", w, 1)], [("dLdx", x)]
        if self.mode is Mode.WEIGHT_BACKWARD:
            # The mirrored convolution's input is the transposed one's output.
            first = 1 if self.transposed else 0
            return [("dLdy", y, first), ("x", x, 1 - first)], [("dLdw", w)]
        return [("dLdy", y, 0)], [("dLdb", (outputs,))]


def _layout(name: str, given: str | None, axes: int) -> str:
    """`given` in capital letters, or the default. Raises UsageError unless it has every letter once."""
    default = _DEFAULT_LAYOUTS[axes]
    layout = default if given is None else str(given).upper()
    if axes == 3:
        layout = layout.replace("W", "H")
    if sorted(layout) != sorted(default):
        raise UsageError(
            f"{name} {given!r} is no layout of {axes} axes", hint=f"use each of {', '.join(default)} once"
        )
    return layout


def _ours(layout: str | None, outer: str) -> str:
    """`NHWC` -> `nhwc`, and `fhwc` for a filter; the axis of a one-dimensional convolution is `w`."""
    converted = str(layout).lower().replace("n", outer)
    return converted.replace("h", "w") if len(converted) == 3 else converted


def _theirs(layout: str) -> str:
    """Inverse of `_ours`."""
    converted = layout.replace("f", "n").upper()
    return converted.replace("W", "H") if len(converted) == 3 else converted


def _each_axis(name: str, value: int | Sequence[int], rank: int, least: int) -> tuple[int, ...]:
    """One number for each spatial axis, from one or from as many."""
    numbers = sizes(name, value if isinstance(value, Sequence) else [value] * rank, least)
    numbers = numbers * rank if len(numbers) == 1 else numbers
    if len(numbers) != rank:
        raise UsageError(f"{name} is one number or {rank}, but got {value!r}")
    return numbers
