"""Programs that only move, scale and add the channels of images, as one kernel that reads and writes memory once.

IREE makes one kernel of each tensor of a concatenation, and another one of what follows.

    relu(batch_norm(cat([a, b])))    for each pixel: the channels of a, then the channels of b, each scaled and stored
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.values import Calls, Value
from dispatch_profiler.configurations.cpu.kernels.writer import LANES, KernelWriter

#: Numbers of elements that a workgroup writes for each result, and of workgroups.
_ELEMENTS, _MOST_WORKGROUPS = 8192, 128
#: Runs of channels whose number the size of the kernel depends on.
_MOST_RUNS = 128
#: Numbers of channels that alternate in a run: from a channel shuffle.
_PERIODS = (1, 2, 4, 8)
#: Elements of what is the same for every pixel, which a workgroup computes first: the stack has 32 KiB.
_MOST_KEPT = 6144
#: Vectors of a run from which on the kernel has a loop over them.
_UNROLLED = 4


def kernel_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel.

    Raises NotFusible if the program does more than to move, scale and add channels of images in channels_last memory.
    """
    expressions, results = _Expressions(), []
    for each, value in zip(_evaluated(program, expressions), program.outputs, strict=True):
        if not _has_channels_last(value) or not isinstance(each, _Image) or each.shape != value.shape:
            raise NotFusible("a result is not an image in channels_last memory")
        results.append(list(_runs(each.channels, expressions)))
    if sum(map(len, results)) > _MOST_RUNS:
        raise NotFusible("the channels are in too many pieces")
    return _ChannelsKernel(program, expressions, function).kernel(results)


# -- values ----------------------------------------------------------------------------------------

# Which expression each channel of a value is. Pixels do not matter: each is computed like the others.


@dataclass
class _Expressions:
    """Expressions by number, each once: a name, and what it has: other expressions, or an input and a channel.

    ("image", input, channel), ("vector", input, channel), ("number", x), ("relu", a), ("add", a, b), ("fma", a, b, c) ...
    """

    every: list[tuple[Any, ...]] = field(default_factory=list)
    _numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __call__(self, *expression: Any) -> int:
        number = self._numbers.setdefault(expression, len(self.every))
        if number == len(self.every):
            self.every.append(expression)
        return number

    def next(self, number: int) -> int | None:
        """The same expression of the channels behind; None if nothing has it."""
        name, *parts = self.every[number]
        if name in ("image", "vector"):
            source, channel = parts
            return self._numbers.get((name, source, channel + 1))
        if name == "number":
            return number
        following = [self.next(each) for each in parts]
        return self._numbers.get((name, *following))

    def constants(self, number: int) -> Iterator[int]:
        """The largest parts of an expression that are computed and the same for every pixel."""
        name, *parts = self.every[number]
        if name in ("image", "vector", "number"):
            return
        if self._is_constant(number):
            yield number
            return
        for each in parts:
            yield from self.constants(each)

    def _is_constant(self, number: int) -> bool:
        name, *parts = self.every[number]
        return name in ("vector", "number") or (name != "image" and all(map(self._is_constant, parts)))


@dataclass(frozen=True)
class _Image:
    """A tensor with the axes of torch, and the expressions of its channels, which may be on several axes."""

    shape: tuple[int, ...]
    channels: np.ndarray

    @property
    def pixels(self) -> tuple[int, ...]:
        """The extents that pixels are on: images, and the axes behind the channels."""
        return (self.shape[0], *self.shape[1 + self.channels.ndim :])

    def with_channels(self, channels: np.ndarray) -> _Image:
        """Other channels of the same pixels."""
        return _Image((self.shape[0], *channels.shape, *self.pixels[1:]), channels)

    def channel_axis(self, axis: int) -> int:
        """An axis of the tensor as an axis of `channels`. Raises NotFusible for others."""
        place = axis % len(self.shape) - 1
        if not 0 <= place < self.channels.ndim:
            raise NotFusible("it is not on the axis of the channels")
        return place


def _evaluated(program: Calls, expressions: _Expressions) -> list[Any]:
    values: list[Any] = [_input(at, value, expressions) for at, value in enumerate(program.inputs)]
    for name, arguments, named in program.parsed_calls:
        if name not in _OPERATORS:
            raise NotFusible(f"{name} does not move, scale or add channels")
        try:
            values.append(_OPERATORS[name](expressions, *_filled(arguments, values), **named))
        except (TypeError, ValueError, AttributeError) as error:
            raise NotFusible(f"{name}: {error}") from error
    returned = [values[each] for each in program.returned]
    pixels = {each.pixels for each in values if isinstance(each, _Image)}
    if len(pixels) != 1:
        raise NotFusible("images have different pixels")
    return returned


def _filled(data: Any, values: Sequence[Any]) -> Any:
    if isinstance(data, list):
        return [_filled(each, values) for each in data]
    return values[data["value"]] if isinstance(data, dict) else data


def _has_channels_last(value: Value) -> bool:
    """Whether an image has its channels last in memory, also if it has only one channel or pixel."""
    is_image = len(value.shape) in (4, 5)
    return value.reading == "channels" or (is_image and 1 in (value.shape[1], math.prod(value.shape[2:])))


def _input(at: int, value: Value, expressions: _Expressions) -> Any:
    if _has_channels_last(value):
        return _Image(
            value.shape, np.array([expressions("image", at, each) for each in range(value.shape[1])])
        )
    if len(value.shape) == 1:
        return np.array([expressions("vector", at, each) for each in range(value.shape[0])])
    raise NotFusible("an input is not an image in channels_last memory")


def _cat(_: _Expressions, images: Sequence[_Image], dim: int = 0) -> _Image:
    axis = images[0].channel_axis(dim)
    return images[0].with_channels(np.concatenate([each.channels for each in images], axis))


def _split(_: _Expressions, x: _Image, size: Any, dim: int = 0) -> list[_Image]:
    axis = x.channel_axis(dim)
    extent = x.channels.shape[axis]
    sizes = size if isinstance(size, list) else [size] * math.ceil(extent / size)
    parts = np.split(x.channels, np.cumsum(sizes)[:-1], axis)
    return [x.with_channels(each) for each in parts]


def _slice(
    _: _Expressions, x: _Image, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> _Image:
    places = [slice(None)] * x.channels.ndim
    places[x.channel_axis(dim)] = slice(start, end, step)
    return x.with_channels(x.channels[tuple(places)])


def _shuffle(_: _Expressions, x: _Image, groups: int) -> _Image:
    return x.with_channels(x.channels.reshape(groups, -1).transpose().reshape(-1))


def _reshape(_: _Expressions, x: _Image, shape: list[int]) -> _Image:
    known = math.prod(each for each in shape if each != -1)
    extents = [math.prod(x.shape) // known if each == -1 else each for each in shape]
    pixels = x.pixels[1:]
    channels = extents[1 : len(extents) - len(pixels)]
    image = x.with_channels(x.channels.reshape(channels))
    if image.shape != tuple(extents) or not channels:
        raise NotFusible("it joins channels and pixels")
    return image


def _permute(_: _Expressions, x: _Image, dims: Sequence[int]) -> _Image:
    axes = [each % len(x.shape) for each in dims]
    count = x.channels.ndim
    inner = [each - 1 for each in axes[1 : 1 + count]]
    if [0, *(each + 1 for each in sorted(inner)), *axes[1 + count :]] != list(range(len(x.shape))) or axes[0]:
        raise NotFusible("it moves pixels")
    return x.with_channels(x.channels.transpose(inner))


def _transpose(_: _Expressions, x: _Image, first: int, second: int) -> _Image:
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return _permute(_, x, axes)


def _each(expressions: _Expressions, name: str, image: _Image, *others: Any) -> _Image:
    """`name` of each channel, and of `others`: images of the same shape, arrays with a value per channel, or numbers."""
    arrays = []
    for each in others:
        if isinstance(each, (int, float)):
            arrays.append(np.full(image.channels.shape, expressions("number", float(each))))
        elif isinstance(each, np.ndarray) and each.shape == image.channels.shape:
            arrays.append(each)
        elif isinstance(each, _Image) and each.shape == image.shape:
            arrays.append(each.channels)
        else:
            raise NotFusible("it broadcasts")
    parts = zip(image.channels.flat, *(each.flat for each in arrays), strict=True)
    channels = np.array([expressions(name, *map(int, each)) for each in parts])
    return image.with_channels(channels.reshape(image.channels.shape))


def _elementwise(name: str) -> Callable[..., _Image]:
    def compute(expressions: _Expressions, x: Any, *others: Any) -> _Image:
        if any(isinstance(each, np.ndarray) for each in others):
            raise NotFusible("it broadcasts along columns")  # torch aligns the last axes
        return _each(expressions, name, x, *others)

    return compute


def _batch_norm(
    expressions: _Expressions,
    x: _Image,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    mean: np.ndarray,
    variance: np.ndarray,
    momentum: float,
    eps: float,
) -> list[_Image]:
    """torch's formula: x * scale + shift."""
    terms = [each for each in (weight, bias, mean, variance) if each is not None]
    if x.channels.ndim != 1 or any(each.shape != x.channels.shape for each in terms):
        raise NotFusible("its vectors do not have an element for each channel")
    scales, shifts = [], []
    for at in range(len(mean)):
        scale = expressions("inverse_root", expressions("add", int(variance[at]), expressions("number", eps)))
        if weight is not None:
            scale = expressions("mul", scale, int(weight[at]))
        first = expressions("number", 0.0) if bias is None else int(bias[at])
        shifts.append(expressions("sub", first, expressions("mul", int(mean[at]), scale)))
        scales.append(scale)
    return [_each(expressions, "fma", x, np.array(scales), np.array(shifts))]


def _same(_: _Expressions, x: Any) -> Any:
    return x


def _item(_: _Expressions, items: list[_Image], at: int) -> _Image:
    return items[at]


_OPERATORS: dict[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_no_training": _batch_norm,
    "add.Tensor": _elementwise("add"),
    "alias": _same,
    "cat": _cat,
    "channel_shuffle": _shuffle,
    "clone": _same,
    "getitem": _item,
    "leaky_relu": lambda expressions, x, slope=0.01: _each(expressions, "leaky_relu", x, slope),
    "mul.Tensor": _elementwise("mul"),
    "native_channel_shuffle": _shuffle,
    "permute": _permute,
    "relu": _elementwise("relu"),
    "reshape": _reshape,
    "slice.Tensor": _slice,
    "split.Tensor": _split,
    "split_with_sizes": _split,
    "sub.Tensor": _elementwise("sub"),
    "transpose.int": _transpose,
}
#: The names of the operators that such a program may have, and of the operators without which IREE compiles it well.
CHANNELWISE = frozenset(_OPERATORS)
PIECES = frozenset(
    (
        *(
            "cat",
            "channel_shuffle",
            "native_channel_shuffle",
            "slice.Tensor",
            "split.Tensor",
            "split_with_sizes",
        ),
        "unbind.int",
    )
)


# -- runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Channels from `start` on, `count` of each of `streams` in turn, whose expressions are of consecutive channels.

    Each of `streams` is the expression of its first channel.
    """

    start: int
    count: int
    streams: tuple[int, ...]


def _runs(channels: np.ndarray, expressions: _Expressions) -> Iterator[_Run]:
    """The channels of an image as few runs."""
    numbers = [int(each) for each in channels]
    following = [expressions.next(each) for each in numbers]
    start = 0
    while start < len(numbers):
        found = (_run_at(numbers, following, start, period) for period in _PERIODS)
        run = max(found, key=lambda each: each.count * len(each.streams))
        yield run
        start += run.count * len(run.streams)


def _run_at(numbers: Sequence[int], following: Sequence[int | None], start: int, period: int) -> _Run:
    streams = tuple(numbers[start : start + period])
    if len(streams) < period:
        return _Run(start, 0, streams)
    end = start + period
    while end < len(numbers) and numbers[end] == following[end - period]:
        end += 1
    return _Run(start, (end - start) // period, streams)


# -- the kernel ------------------------------------------------------------------------------------


class _ChannelsKernel(KernelWriter):
    """Writes the kernel: for each pixel and run, vectors of channels are read, computed and stored."""

    def __init__(self, program: Calls, expressions: _Expressions, function: str) -> None:
        super().__init__(function, program.operands, program.results)
        self.program = program
        self.expressions = expressions
        #: The place in %kept of each expression that is the same for every pixel.
        self._kept: dict[int, int] = {}
        self._kept_elements = 0

    def kernel(self, results: Sequence[Sequence[_Run]]) -> str:
        """The kernel and the function that launches it."""
        outputs = self.program.outputs
        pixels = self.results[0].elements // outputs[0].shape[1]
        widest = max(each.shape[1] for each in outputs)
        part = max(1, _ELEMENTS // widest, -(-pixels // _MOST_WORKGROUPS))
        self.write("%part = hal.interface.workgroup.id[0] : index")
        first = self.affine(f"part * {part}", part="%part")
        last = self.affine(f"part * {part} + {part}, {pixels}", kind="min", part="%part")
        self._keep_constants([run for runs in results for run in runs])
        self.write(f"scf.for %pixel = {first} to {last} step %c1 {{")
        for at, runs in enumerate(results):
            for run in runs:
                self._run(at, run)
        self.write("}")
        return self.text(-(-pixels // part))

    def _keep_constants(self, runs: Sequence[_Run]) -> None:
        """Compute what is the same for every pixel, such as the scales of batch norms, into %kept."""
        counts: dict[int, int] = {}
        for run in runs:
            for each in (
                constant for stream in run.streams for constant in self.expressions.constants(stream)
            ):
                counts[each] = max(run.count, counts.get(each, 0))
        places = list(accumulate((-(-each // LANES) * LANES for each in counts.values()), initial=0))
        if not counts or places[-1] > _MOST_KEPT:
            return
        self._kept_elements = places[-1]
        self.write(f"%kept = memref.alloca() : memref<{places[-1]}xf32>")
        for (number, count), start in zip(counts.items(), places, strict=False):
            self._along(count, LANES, partial(self._keep, number, start))
        self._kept = dict(zip(counts, places, strict=False))

    def _keep(self, number: int, start: int, place: _Place) -> None:
        value = self._value(number, place, {})
        at = self._address(0, start + place.first, place.counter, pixel="%c0")
        self.write(f"vector.store {value}, %kept[{at}] : memref<{self._kept_elements}xf32>, {place.vector}")

    def _along(self, count: int, lanes: int, write: Callable[[_Place], None]) -> None:
        """Write vectors of `count` channels: the longest ones in a loop, and shorter ones for the rest."""
        done = 0
        whole = count // lanes * lanes
        if whole > _UNROLLED * lanes:
            self.loop(self.constant(0), self.constant(whole), lanes, partial(self._at_counter, lanes, write))
            done = whole
        while done < count:
            while lanes > count - done:
                lanes //= 2
            write(_Place(done, lanes))
            done += lanes

    @staticmethod
    def _at_counter(
        lanes: int, write: Callable[[_Place], None], counter: str, _: Sequence[str]
    ) -> tuple[str, ...]:
        write(_Place(0, lanes, counter))
        return ()

    def _run(self, result: int, run: _Run) -> None:
        """A run of one pixel."""
        self._along(run.count, max(1, LANES // len(run.streams)), partial(self._vectors, result, run))

    def _vectors(self, result: int, run: _Run, place: _Place) -> None:
        """Compute the channels at `place` of each stream, and store them."""
        known: dict[int, str] = {}
        first, counter, width = place.first, place.counter, place.lanes
        vectors = [self._value(each, place, known) for each in run.streams]
        while len(vectors) > 1:
            half = len(vectors) // 2
            pairs = [
                (self.name(), first_, second)
                for first_, second in zip(vectors[:half], vectors[half:], strict=True)
            ]
            for name, even, odd in pairs:
                self.write(
                    f"{name} = vector.interleave {even}, {odd} : vector<{width}xf32> -> vector<{2 * width}xf32>"
                )
            vectors, width = [name for name, _, _ in pairs], 2 * width
        streams = len(run.streams)
        stride = self.program.outputs[result].shape[1]
        at = self._address(stride, run.start + first * streams, counter, streams)
        self.store(vectors[0], len(self.inputs) + result, at, width)

    def _value(self, number: int, place: _Place, known: dict[int, str]) -> str:
        """The name of the vector of an expression, which is written unless it is in `known`."""
        if number in known:
            return known[number]
        name, *parts = self.expressions.every[number]
        type_ = place.vector
        if number in self._kept:
            at = self._address(0, self._kept[number] + place.first, place.counter, pixel="%c0")
            text = f"vector.load %kept[{at}] : memref<{self._kept_elements}xf32>, {type_}"
        elif name in ("image", "vector"):
            source, channel = parts
            is_image = name == "image"
            stride, pixel = (self.program.inputs[source].shape[1], "%pixel") if is_image else (0, "%c0")
            at = self._address(stride, channel + place.first, place.counter, pixel=pixel)
            known[number] = self.load(source, at, place.lanes)
            return known[number]
        elif name == "number":
            text = f"arith.constant dense<{parts[0]:.9e}> : {type_}"
        else:
            text = self._computed(name, [self._value(each, place, known) for each in parts], type_)
        known[number] = to = self.name()
        self.write(f"{to} = {text}")
        return to

    def _computed(self, name: str, of: Sequence[str], type_: str) -> str:
        """The operation of an expression on vectors."""
        if name in _ARITHMETIC:
            return f"{_ARITHMETIC[name]} {', '.join(of)} : {type_}"
        if name == "relu":
            return f"arith.maximumf {of[0]}, {self.constant('0.0', type_)} : {type_}"
        if name == "inverse_root":
            root = self.name()
            self.write(f"{root} = math.sqrt {of[0]} : {type_}")
            return f"arith.divf {self.constant('1.0', type_)}, {root} : {type_}"
        small, positive = self.name(), self.name()
        assert name == "leaky_relu", name
        self.write(f"{small} = arith.mulf {of[0]}, {of[1]} : {type_}")
        self.write(f"{positive} = arith.cmpf oge, {of[0]}, {self.constant('0.0', type_)} : {type_}")
        return f"arith.select {positive}, {of[0]}, {small} : {type_.replace('f32', 'i1')}, {type_}"

    def _address(
        self, stride: int, offset: int, counter: str, factor: int = 1, *, pixel: str = "%pixel"
    ) -> str:
        """The place of a channel of a pixel in a buffer with `stride` channels."""
        names = [pixel, *([counter] if counter else [])]
        dims = "pixel, channel" if counter else "pixel"
        moved = f" + channel * {factor}" if counter else ""
        at = self.name()
        self.write(
            f"{at} = affine.apply affine_map<({dims}) -> (pixel * {stride} + {offset}{moved})>({', '.join(names)})"
        )
        return at


@dataclass(frozen=True)
class _Place:
    """The channels of a vector: `lanes` from `first` on, or from the loop's `counter` on."""

    first: int
    lanes: int
    counter: str = ""

    @property
    def vector(self) -> str:
        """The type of the vector."""
        return f"vector<{self.lanes}xf32>"


_ARITHMETIC = {"add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "fma": "vector.fma"}
