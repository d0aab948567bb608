"""Attention: `softmax(scale * query @ key.T + mask) @ value` of each head, as torch's `scaled_dot_product_attention` defines it.

Several heads of queries may share a head of keys and values (grouped queries). A query that sees no key has zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError, RangeError, did_you_mean
from dispatch_profiler.operations._base import (
    ContractFunction,
    Distribution,
    ErrorBound,
    Loop,
    Operation,
    Reference,
    Tensor,
    check_positive,
    check_whole,
    number_in_symbol,
)
from dispatch_profiler.operations.attention import reference as attention_reference
from dispatch_profiler.operations.element_types import ElementType, element_type
from dispatch_profiler.operations.geometry import (
    CAUSALS,
    AttentionGeometry,
    AttentionPlaces,
    Visibility,
    dense_strides,
)
from dispatch_profiler.operations.options import ShapeOption, SweepOptions, numbers, parse_range
from dispatch_profiler.operations.reductions import DEFAULT_SUM_TYPES, TYPES, type_option
from dispatch_profiler.operations.strided import Strided

#: What a mask has: whether a key is seen, or numbers that are added to scores.
MASKS = ("", "bool", "add")
#: The axes that a mask has besides keys: batch, heads, queries.
_MASK_AXES = "bhq"
#: The order of the axes batch, head, position and element in memory.
LAYOUTS = ("bhsd", "bshd")
#: A word for the empty value of an option.
_NONE = "none"
#: Scores of drawn queries and keys have this standard deviation: some keys count a hundred times as much as others.
_DEVIATION = 2.0
#: Scores far from zero: their exponentials overflow unless the maximum is subtracted.
_FAR_SCORE = 150.0
#: The part of keys that a drawn mask hides, and the deviation of the numbers that it adds.
_HIDDEN, _ADDED = 0.3, 2.0

#: (batch, heads, queries, keys, size), key heads, causal: BERT, ViT, GPT-2, and Llama 3 with a prompt and with one token.
_PROBLEMS: tuple[tuple[tuple[int, int, int, int, int], int, str], ...] = (
    ((1, 12, 128, 128, 64), 12, ""),
    ((1, 12, 197, 197, 64), 12, ""),
    ((1, 12, 512, 512, 64), 12, "upper_left"),
    ((1, 32, 512, 512, 128), 8, "upper_left"),
    ((1, 32, 1, 1024, 128), 8, ""),
)


def _choices(what: str, allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """What parses a comma list of `allowed` words; `none` is the empty one. Raises RangeError."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple("" if word == _NONE else word for word in text.split(","))
        for word in words:
            if word not in allowed:
                known = [each or _NONE for each in allowed]
                raise RangeError(f"unknown {what} {word!r}", hint=did_you_mean(word, known))
        return words

    return parse


def _masks(text: str) -> tuple[tuple[str, str], ...]:
    """`none,bool,add-bq` -> (("", ""), ("bool", ""), ("add", "bq")). Raises RangeError."""
    found = []
    for word in text.split(","):
        kind, _, axes = ("" if word == _NONE else word).partition("-")
        if kind not in MASKS or not _are_axes(axes) or (axes and not kind):
            hint = (
                "write none, bool or add; then the axes that it has besides keys, such as bool-b or add-bhq"
            )
            raise RangeError(f"malformed mask {word!r}", hint=hint)
        found.append((kind, axes))
    return tuple(found)


def _are_axes(axes: str) -> bool:
    """Whether letters are axes of a mask, each once, in their order."""
    return axes == "".join(letter for letter in _MASK_AXES if letter in axes)


def _flags(text: str) -> tuple[bool, ...]:
    values = {"true": True, "false": False}
    words = text.split(",")
    if unknown := [word for word in words if word not in values]:
        raise RangeError(f"malformed value {unknown[0]!r}", hint="write true or false")
    return tuple(values[word] for word in words)


def _extent(name: str, text: str, minimum: int = 1) -> ShapeOption:
    spelling = f"--attention-{name.replace('_', '-')}"
    parse = partial(parse_range, minimum=minimum)
    return ShapeOption(f"attention_{name}", (spelling,), text, parse)


def _mask_text(mask: str, axes: str) -> str:
    return f"{mask or _NONE}{'-' + axes if axes else ''}"


def _swept_extents(given: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The extents of a sweep and whether they are causal: the predefined ones, unless some extents are given."""
    names = ("batch", "heads", "queries", "keys", "size", "key_heads", "value_size")
    if not given.keys() & set(names):
        return [
            {**dict(zip(names, (*shape, key_heads, 0), strict=True)), "causal": causal}
            for shape, key_heads, causal in _PROBLEMS
        ]
    # As many keys as queries, unless one of them is given alone.
    queries = given.get("queries", (128,))
    axes = (
        given.get("batch", (1,)), given.get("heads", (1,)), queries, given.get("keys", queries),
        given.get("size", (64,)), given.get("key_heads", (0,)), given.get("value_size", (0,)),
    )  # fmt: skip
    return [{**dict(zip(names, each, strict=True)), "causal": ""} for each in itertools.product(*axes)]


@dataclass(frozen=True)
class Attention(Operation):
    """`queries` rows of each head weigh `keys` rows. With `H` heads and `G` key heads, in the layout bhsd:

        query (batch, H, queries, size), key (batch, G, keys, size), value (batch, G, keys, value_size),
        mask (batch or 1, H or 1, queries or 1, keys) -> result (batch, H, queries, value_size)

    The layout bshd has the heads behind the positions. All are of `type`, but for a mask of kind `bool`, whose elements are
    i8: 0 hides a key. A mask of kind `add` is added to the scores. `mask_axes` has the letters of the axes that a mask has
    besides keys. `causal`: see `Visibility`; with a `window`, a query sees at most so many keys. `logsumexp` is a second
    result: for each query, in the accumulator's type, the logarithm of the sum of the scores' exponentials.

    Zeros stand for usual values: as many `key_heads` as heads, a `value_size` of `size`, and a `scale` of 1 / sqrt(size).
    """

    kind: ClassVar[str] = "attention"
    parallel_axes: ClassVar[tuple[str, ...]] = ("batch", "head", "query", "element")
    reduction_axes: ClassVar[tuple[str, ...]] = ("key",)
    # Exponentials are inexact on integers.
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    type_options: ClassVar[tuple[str, ...]] = ()
    batch_name: ClassVar[str] = "batch"
    shape_options: ClassVar[tuple[ShapeOption, ...]] = (
        _extent("batch", "sequences"),
        _extent("heads", "heads of queries"),
        _extent("queries", "queries of a sequence"),
        _extent("keys", "keys of a sequence"),
        _extent("size", "elements of a query"),
        _extent("key_heads", "heads of keys; 0: as many as of queries", 0),
        _extent("value_size", "elements of a value; 0: as many as of a query", 0),
        type_option("attention"),
        ShapeOption(
            "attention_scale",
            ("--attention-scale",),
            "factor of scores; 0: 1 / sqrt(size)",
            numbers("0.125"),
            "SCALE,...",
        ),
        ShapeOption(
            "attention_causal",
            ("--attention-causal",),
            "hide keys behind a query's position, counted from the first query and key, or from the last ones",
            _choices("kind of causal attention", CAUSALS),
            "none|upper_left|lower_right",
        ),
        _extent("window", "keys that a query sees at most, with --attention-causal; 0: all", 0),
        ShapeOption(
            "attention_mask",
            ("--attention-mask",),
            "a mask that hides keys or is added to scores, and its axes besides keys: bool-bq",
            _masks,
            "none|bool|add[-[b][h][q]]",
        ),
        ShapeOption(
            "attention_logsumexp",
            ("--attention-logsumexp",),
            "also return the logarithms of the sums",
            _flags,
            "true|false",
        ),
        ShapeOption(
            "attention_layout",
            ("--attention-layout",),
            "order of batch, head, position and element",
            _choices("layout", LAYOUTS),
            "bhsd|bshd",
        ),
    )

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    key_heads: int = 0
    value_size: int = 0
    type: str = "f32"
    scale: float = 0.0
    causal: str = ""
    window: int = 0
    mask: str = ""
    mask_axes: str = ""
    logsumexp: bool = False
    layout: str = "bhsd"

    def __post_init__(self) -> None:
        check_positive(
            self.kind,
            batch=self.batch,
            heads=self.heads,
            queries=self.queries,
            keys=self.keys,
            size=self.size,
        )
        check_whole(
            self.kind,
            0,
            "key_heads, value_size and window",
            key_heads=self.key_heads,
            value_size=self.value_size,
            window=self.window,
        )
        self._check_number("scale", self.scale)
        usual = {
            "key_heads": self.key_heads or self.heads,
            "value_size": self.value_size or self.size,
            "scale": self.scale or 1.0 / math.sqrt(self.size),
            "type": element_type(self.type).name,
        }
        for name, value in usual.items():
            object.__setattr__(self, name, value)
        self._check_words()
        if self.heads % self.key_heads:
            raise OperationError(
                f"attention: {self.heads} heads cannot share {self.key_heads} key heads evenly",
                hint="the number of heads is a multiple of the number of key heads",
            )
        if self.window and not self.causal:
            raise OperationError(
                "attention: a window needs causal attention, but got causal=''",
                hint="upper_left or lower_right says where each window ends",
            )

    def _check_number(self, name: str, value: float) -> None:
        if type(value) is not float or not 0.0 <= value < math.inf:
            raise OperationError(f"attention: {name} must be a number above 0, but got {value!r}")

    def _check_words(self) -> None:
        if self.type not in TYPES:
            raise OperationError(
                f"attention: no element type {self.type}", hint=f"available: {', '.join(TYPES)}"
            )
        for name, allowed in (("causal", CAUSALS), ("mask", MASKS), ("layout", LAYOUTS)):
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(repr(each) for each in allowed)
                raise OperationError(f"attention: no {name} {value!r}", hint=f"available: {known}")
        if type(self.logsumexp) is not bool:
            raise OperationError(f"attention: logsumexp must be True or False, but got {self.logsumexp!r}")
        if not isinstance(self.mask_axes, str) or not _are_axes(self.mask_axes):
            raise OperationError(
                f"attention: mask_axes must be letters of {_MASK_AXES!r} in this order, but got {self.mask_axes!r}"
            )
        if self.mask_axes and not self.mask:
            raise OperationError("attention: mask_axes without a mask", hint="mask is 'bool' or 'add'")

    @classmethod
    def smallest(cls) -> Attention:
        return cls(1, 1, 1, 1, 1)

    # -- names --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """`attention_1x12x128x197x64_f32t[_g4][_v32][_scale0p1][_upper_left][_window256][_addbq][_logsumexp][_bshd]`."""
        parts = [f"attention_{self.batch}x{self.heads}x{self.queries}x{self.keys}x{self.size}_{self.type}t"]
        parts += [f"g{self.key_heads}"] if self.is_grouped else []
        parts += [f"v{self.value_size}"] if self.value_size != self.size else []
        parts += [f"scale{number_in_symbol(self.scale)}"] if not self.has_usual_scale else []
        parts += [self.causal] if self.causal else []
        parts += [f"window{self.window}"] if self.window else []
        parts += [f"{self.mask}{self.mask_axes}"] if self.mask else []
        parts += ["logsumexp"] if self.logsumexp else []
        parts += [self.layout] if self.layout != LAYOUTS[0] else []
        return "_".join(parts)

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of queries share a head of keys."""
        return self.key_heads != self.heads

    @property
    def has_usual_scale(self) -> bool:
        """Whether the scale is 1 / sqrt(size)."""
        return self.scale == 1.0 / math.sqrt(self.size)

    def arguments(self) -> dict[str, str]:
        extents = ("batch", "heads", "queries", "keys", "size", "key_heads", "value_size")
        return {
            **{f"attention-{name.replace('_', '-')}": str(getattr(self, name)) for name in extents},
            "attention-type": self.type,
            "attention-scale": repr(self.scale),
            "attention-causal": self.causal or _NONE,
            "attention-window": str(self.window),
            "attention-mask": _mask_text(self.mask, self.mask_axes),
            "attention-logsumexp": str(self.logsumexp).lower(),
            "attention-layout": self.layout,
        }

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], Attention]]:
        given = {
            name.removeprefix("attention_"): values
            for name, values in options.shapes.items()
            if name.startswith("attention_")
        }
        usual: Mapping[str, tuple[Any, ...]] = {
            "type": DEFAULT_SUM_TYPES, "scale": (0.0,), "window": (0,), "mask": (("", ""),), "logsumexp": (False,),
            "layout": (LAYOUTS[0],),
        }  # fmt: skip
        axes = [given.get(name, values) for name, values in usual.items()]
        for extents, *values in itertools.product(_swept_extents(given), *axes):
            named = dict(zip(usual, values, strict=True))
            mask, mask_axes = named.pop("mask")
            for causal in given.get("causal", (extents["causal"],)):
                yield partial(cls, **{**extents, **named, "causal": causal}, mask=mask, mask_axes=mask_axes)

    # -- shapes -------------------------------------------------------------------------------

    @property
    def attention(self) -> AttentionGeometry:
        return AttentionGeometry(
            batch=self.batch,
            heads=self.heads,
            queries=self.queries,
            keys=self.keys,
            size=self.size,
            key_heads=self.key_heads,
            value_size=self.value_size,
            scale=self.scale,
            causal=self.causal,
            window=self.window,
            mask=self.mask,
            logsumexp=self.logsumexp,
            layout=self.layout,
            places=self._places,
        )

    @property
    def _places(self) -> AttentionPlaces:
        shared, mask = self.heads // self.key_heads, self._mask_tensor
        return AttentionPlaces(
            query=self._place(0, self.heads, self.queries, self.size),
            key=self._place(1, self.key_heads, self.keys, self.size, shared),
            value=self._place(2, self.key_heads, self.keys, self.value_size, shared),
            result=self._place(len(self.operands), self.heads, self.queries, self.value_size),
            mask=None if mask is None else _mask_place(mask.shape),
        )

    def _place(self, source: int, heads: int, positions: int, elements: int, shared: int = 1) -> Strided:
        strides = dense_strides(heads, positions, elements, heads_first=self.layout == LAYOUTS[0])
        return Strided(source, 0, strides, shared)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        element = self.element_type
        mask = self._mask_tensor
        return (
            Tensor("query", self._shape(self.heads, self.queries, self.size), element),
            Tensor("key", self._shape(self.key_heads, self.keys, self.size), element),
            Tensor("value", self._shape(self.key_heads, self.keys, self.value_size), element),
            *(() if mask is None else (mask,)),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        shape = self._shape(self.heads, self.queries, self.value_size)
        result = Tensor("result", shape, self.element_type)
        if not self.logsumexp:
            return (result,)
        return result, Tensor("logsumexp", (self.batch, self.heads, self.queries), self.accumulator)

    def _shape(self, heads: int, positions: int, elements: int) -> tuple[int, ...]:
        middle = (heads, positions) if self.layout == LAYOUTS[0] else (positions, heads)
        return (self.batch, *middle, elements)

    @property
    def _mask_tensor(self) -> Tensor | None:
        if not self.mask:
            return None
        extents = zip(_MASK_AXES, (self.batch, self.heads, self.queries), strict=True)
        shape = (*(extent if letter in self.mask_axes else 1 for letter, extent in extents), self.keys)
        return Tensor("mask", shape, element_type("i8") if self.mask == "bool" else self.element_type)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (
            Loop("batch", self.batch, "parallel"),
            Loop("head", self.heads, "parallel"),
            Loop("query", self.queries, "parallel"),
            Loop("element", self.value_size, "parallel"),
            Loop("key", self.keys, "reduction"),
        )

    @property
    def element_type(self) -> ElementType:
        return element_type(self.type)

    @property
    def accumulator(self) -> ElementType:
        return self.element_type.accumulator

    @property
    def rounds_between_steps(self) -> bool:
        """Libraries without a fused kernel store scores, and the weights of values."""
        return self.element_type != self.accumulator

    @property
    def visibility(self) -> Visibility:
        """The keys that queries see, apart from a mask."""
        return Visibility(self.queries, self.keys, self.causal, self.window)

    @property
    def flops(self) -> int:
        """Of keys that are seen: 2 for each element of a query and of a value, and 5 for the softmax."""
        pairs = self.batch * self.heads * self.visibility.pairs
        return pairs * (2 * self.size + 2 * self.value_size + 5 + (self.mask == "add"))

    def with_batch(self, batch: int) -> Attention:
        """See `Operation.with_batch`: with so many sequences."""
        return replace(self, batch=batch)

    # -- values -------------------------------------------------------------------------------

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Queries and keys whose scores deviate by about 2; OFFSET: and are about 150.

        A mask hides or moves some keys, and all keys of the first query that has a mask of its own.
        """
        if operand.name == "mask":
            return self._draw_mask(operand, rng)
        values = rng.uniform(-1.0, 1.0, operand.shape)
        if operand.name in ("query", "key"):
            # A sum of `size` products of uniform numbers up to a deviates by a**2 sqrt(size) / 3.
            values *= math.sqrt(3.0 * _DEVIATION / (self.scale * math.sqrt(self.size)))
            if distribution is Distribution.OFFSET:
                values += math.sqrt(_FAR_SCORE / (self.scale * self.size))
        return values.astype(operand.type.dtype)

    def _draw_mask(self, operand: Tensor, rng: np.random.Generator) -> np.ndarray:
        is_hidden = rng.random(operand.shape) < _HIDDEN
        if "q" in self.mask_axes and self.queries > 1:
            is_hidden[0, 0, 0] = True
        else:
            is_hidden[..., -1] = False  # each query sees a key
        if self.mask == "bool":
            return np.logical_not(is_hidden).astype(operand.type.dtype)
        added = _ADDED * rng.uniform(-1.0, 1.0, operand.shape)
        return np.where(is_hidden, -np.inf, added).astype(operand.type.dtype)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """See `attention_reference`."""
        return attention_reference.reference(
            self.attention, self.element_type, operands, stepwise=stepwise, error_bound=error_bound
        )


def _mask_place(shape: Sequence[int]) -> Strided:
    """Where the mask is; the stride of an axis that it lacks is 0."""
    _, heads, queries, keys = shape
    strides = (heads * queries * keys, queries * keys, keys)
    found = (stride if extent > 1 else 0 for stride, extent in zip(strides, shape, strict=False))
    return Strided(3, 0, (*found, 1))
