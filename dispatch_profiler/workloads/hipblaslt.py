"""A call in a hipBLASLt log -> a row-major matmul or batch_matmul.

hipBLASLt computes the column-major product `D = act(scale * alpha * op(A) op(B) + beta * C + bias)`, where op(A) is
M x K, op(B) is K x N, and bias has one value for each of the M rows of D. A column-major matrix is the row-major matrix
of its transpose, so this is the row-major product

    D^T = op(B)^T op(A)^T        with m = N, n = M, k = K, lhs = B, rhs = A, and a bias along n

plus beta C^T, a residual.

transB N -> lhs is stored as N x K ("t"), T -> as K x N ("n")
transA N -> rhs is stored as K x M ("t"), T -> as M x K ("n")
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError, short_repr
from dispatch_profiler.operations import (
    BatchMatmul,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
    Step,
    element_type,
    is_below_a_byte,
)

#: Types of hipBLASLt -> element types.
_TYPES = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "bf16_r": "bf16",
    "f8_r": "f8E4M3FN",
    "bf8_r": "f8E5M2",
    "i8_r": "i8",
    "i32_r": "i32",
}
#: Other spellings of types: those of the benchmark programs, and the names of precisions.
_TYPE_SPELLINGS = {
    **{"d": "f64_r", "double": "f64_r", "s": "f32_r", "single": "f32_r", "float": "f32_r"},
    **{"h": "f16_r", "half": "f16_r", "x": "xf32_r", "i": "i32_r"},
    **{name.removesuffix("_r"): name for name in (*_TYPES, "xf32_r")},
}
#: Activations -> steps of an epilogue. hipBLASLt's gelu is the tanh form, and its swish has a factor of 1.
_ACTIVATIONS = {"none": "none", "relu": "relu", "gelu": "gelu_tanh", "swish": "silu", "silu": "silu"}
_LAYOUTS = {"N": "t", "T": "n", "C": "n"}
#: Types of sums -> the type to which operands are converted before they are multiplied.
_CONVERTING = {"f32_f16_r": "f16_r", "f32_bf16_r": "bf16_r"}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_FALSE = frozenset({"", "0", "false", "none", "no", "off"})
#: Features that change the result and that no operation supports.
_FLAGS = {
    "scaleC": "operands are not scaled",
    "scaleD": "results are not scaled",
    "gradient": "gradients of an epilogue are not computed",
    "use_e": "an epilogue has no second result",
    "amaxD": "the largest magnitude of the result is not computed",
    "amaxScaleA": "operands are not scaled by their largest magnitude",
    "amaxScaleB": "operands are not scaled by their largest magnitude",
    "swizzleA": "operands are not swizzled",
    "swizzleB": "operands are not swizzled",
    "grouped_gemm": "products of a group have different shapes",
}


#: Fields for the scaling of operands, with the values for a single factor; others stand for vectors and blocks.
_SCALES, _SCALAR = ("scaleA", "scaleB"), frozenset({"1", "s", "scalar"})
#: All fields but extents, leading dimensions, strides and counts.
_FORM_FIELDS = (
    *(
        "function",
        "transA",
        "transB",
        "alpha",
        "beta",
        "a_type",
        "b_type",
        "c_type",
        "d_type",
        "compute_type",
        "compute_input_typeA",
        "compute_input_typeB",
        "scale_type",
    ),
    *("bias_vector", "bias_source", "bias_type", "scaleAlpha_vector", "activation_type"),
    *_SCALES,
    *_FLAGS,
)
#: `batch_mode` of a batch whose matrices are anywhere in memory.
POINTERS = "1"
_SHAPE_FIELDS = (
    *("M", "N", "K", "batch_count", "batch_mode", "call_count"),
    *(f"{prefix}{matrix}" for prefix in ("ld", "stride_") for matrix in "abcde"),
)
#: Fields that do not change the result, although their names begin like the names of fields that do.
_HARMLESS = ("activation_arg1", "activation_arg2", "aux_type", "use_ext", "use_user_args")
#: What fields that change the result are named after: a newer hipBLASLt may log some that are not known here.
_EFFECTS = re.compile(
    r".*(?:scale|swizzle|amax|computeinput)|alpha|beta|bias|activation|aux|epilogue|grad|group|sparse|conj|order"
)


@dataclass(frozen=True)
class GemmCall:
    """One line of a log, and how it differs from its operation.

    `has_gaps`: some matrices are parts of larger ones, or scattered, but are dense in `operation`. `is_scaled`: A or B is scaled
    by one factor, which `operation` leaves out.
    """

    operation: Operation
    count: int
    has_gaps: bool
    is_scaled: bool


class _Matrix(NamedTuple):
    """Storage of one column-major matrix: leading dimension and distance between the matrices of a batch."""

    rows: int
    columns: int
    leading: int
    stride: int

    @property
    def is_dense(self) -> bool:
        return self.leading == self.rows and self.stride == self.rows * self.columns


@dataclass(frozen=True)
class _Form:
    """The properties of a call besides its extents; the layouts are the row-major operands' layouts."""

    types: ElementTypes
    epilogue: Epilogue
    a_layout: str
    b_layout: str
    is_scaled: bool
    adds_c: bool


def gemm_call(fields: Mapping[str, str]) -> GemmCall:
    """The operation of one call, from the fields of its line as text.

    Raises WorkloadError if a field is missing or invalid, UnsupportedFeature if no operation computes the call.
    """
    # A log has many extents, but few forms.
    renamed, unknown = _names(tuple(fields))
    if renamed:
        fields = {renamed.get(name, name): value for name, value in fields.items()}
    for name in unknown:
        if _is_set(fields[name]):
            raise UnsupportedFeature(
                f"{name}={fields[name][:40]}: an unknown field that may change the result"
            )
    form = _form(*map(fields.get, _FORM_FIELDS))
    m, n, k = _whole(fields, "M"), _whole(fields, "N"), _whole(fields, "K")
    batch, count = _whole(fields, "batch_count", 1), _whole(fields, "call_count", 1)
    a = _matrix(fields, "a", (m, k) if form.a_layout == "t" else (k, m), batch)
    b = _matrix(fields, "b", (k, n) if form.b_layout == "t" else (n, k), batch)
    d = _matrix(fields, "d", (m, n), batch)
    c = _matrix(fields, "c", (m, n), batch) if form.adds_c else d
    has_gaps = not (a.is_dense and b.is_dense and c.is_dense and d.is_dense)
    if batch > 1 and not (a.stride and b.stride and c.stride and d.stride):
        n, batch, has_gaps = _without_batch(n, batch, (a, b, c, d), form.b_layout)
    has_gaps |= batch > 1 and fields.get("batch_mode") == POINTERS
    rest = form.types, form.b_layout, form.a_layout, form.epilogue
    operation = Matmul(n, m, k, *rest) if batch == 1 else BatchMatmul(batch, n, m, k, *rest)
    return GemmCall(operation, count, has_gaps, form.is_scaled)


def field_name(name: str) -> str:
    """The field that `name` stands for, whatever its case and underscores: `swizzle_a` -> `swizzleA`."""
    return _BY_FOLDED.get(_folded(name), name)


def is_effect(name: str) -> bool:
    """Whether a field is named like those that change the result: `beta`, `scale_x`, `bias`, `swizzle_c`."""
    return _EFFECTS.match(_folded(name)) is not None


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


_BY_FOLDED = {_folded(name): name for name in (*_FORM_FIELDS, *_SHAPE_FIELDS, *_HARMLESS)}


@lru_cache(maxsize=1000)
def _names(names: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The fields of names in other spellings, and the unknown names that may stand for a change of the result."""
    renamed = {name: field_name(name) for name in names if field_name(name) != name}
    if twice := [name for name, field in renamed.items() if field in names]:
        raise _repeated(twice[0])
    return renamed, tuple(name for name in names if _folded(name) not in _BY_FOLDED and is_effect(name))


def _is_set(text: str) -> bool:
    """Whether the text of a flag stands for anything but false, none and zero."""
    return text.casefold() not in _FALSE and not re.fullmatch(r"0*\.0*", text)


@lru_cache(maxsize=1000)
def _form(*values: str | None) -> _Form:
    """The form of a call, from the texts of `_FORM_FIELDS`; None for a field that is not given."""
    fields = {name: value for name, value in zip(_FORM_FIELDS, values, strict=True) if value is not None}
    if (function := fields.get("function") or "matmul") != "matmul":
        raise UnsupportedFeature(f"function {short_repr(function)}: only matmul is supported")
    a_layout, b_layout = _layout(fields, "transA"), _layout(fields, "transB")
    alpha, beta = _factors(fields)
    _check_features(fields)
    scales = [(name, fields[name]) for name in _SCALES if _is_set(fields.get(name, ""))]
    if other := [f"{name}={value[:40]}" for name, value in scales if value.casefold() not in _SCALAR]:
        raise UnsupportedFeature(f"{' and '.join(other)}: operands are not scaled by vectors or blocks")
    types = _element_types(fields)
    epilogue = _epilogue(fields, alpha, beta)
    try:
        Matmul(1, 1, 1, types, epilogue=epilogue)
    except OperationError as error:
        raise UnsupportedFeature(f"alpha={alpha:g}, beta={beta:g}: {error}") from error
    return _Form(types, epilogue, a_layout, b_layout, bool(scales), beta != 0.0)


def _without_batch(
    n: int, batch: int, matrices: tuple[_Matrix, _Matrix, _Matrix, _Matrix], trans_b: str
) -> tuple[int, int, bool]:
    """N, batch count and gaps of a batch that shares matrices.

    A batch that shares A is one product, whose B, C and D have the columns of the whole batch.
    """
    a, b, c, d = matrices
    if not d.stride:
        raise WorkloadError(f"stride_d is 0, but batch_count is {batch}")
    if b.stride and c.stride and trans_b == "t" and b.is_dense and c.is_dense and d.is_dense:
        return n * batch, 1, a.leading > a.rows
    shared = [f"stride_{name}=0" for name, matrix in zip("abc", (a, b, c), strict=True) if not matrix.stride]
    raise UnsupportedFeature(f"{' and '.join(shared)}: products of a batch do not share operands")


def _factors(fields: Mapping[str, str]) -> tuple[float, float]:
    """Alpha and beta. Raises UnsupportedFeature if the product does not count, or if C has another type than D."""
    alpha, beta = _number(fields, "alpha", 1.0), _number(fields, "beta", 0.0)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not math.isfinite(value):
            raise UnsupportedFeature(f"{name}={value:g}: only finite factors are supported")
    if alpha == 0.0:
        raise UnsupportedFeature("alpha=0: nothing is multiplied")
    if beta and (c := _type(fields, "c_type", "d_type")) != (d := _type(fields, "d_type")):
        raise UnsupportedFeature(
            f"beta={beta:g} and c_type={c[:40]}: only a C of the result's type {d} is added"
        )
    return alpha, beta


def _number(fields: Mapping[str, str], name: str, default: float) -> float:
    text = fields.get(name, str(default))
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"{name}: expected a number, but got {short_repr(text)}") from None


def _check_features(fields: Mapping[str, str]) -> None:
    """Raise UnsupportedFeature for features that change the result and that no operation supports."""
    for name, reason in _FLAGS.items():
        if _is_set(given := fields.get(name, "")):
            raise UnsupportedFeature(f"{name}={given[:40]}: {reason}")
    for operand in "AB":
        name, stored = f"compute_input_type{operand}", f"{operand.lower()}_type"
        given = fields.get(name, "")
        if given.casefold() in (*_FALSE, "invalid", "default", "non-supported type"):
            continue
        if not _is_held(_type(fields, stored), type_spelling(given)):
            raise UnsupportedFeature(
                f"{name}={given[:40]} and {stored}={_type(fields, stored)[:40]}: operands are not converted before "
                "they are multiplied"
            )


def type_spelling(text: str) -> str:
    """A type in hipBLASLt's spelling: `s` and `single` are f32_r."""
    folded = text.strip().casefold()
    return _TYPE_SPELLINGS.get(folded, folded)


def _type(fields: Mapping[str, str], name: str, default: str = "") -> str:
    """The type of field `name`, by default of field `default`, in hipBLASLt's spelling."""
    given = fields.get(name, "")
    is_default = default and given.casefold() in ("", "default")
    return type_spelling(_required(fields, default if is_default else name))


def _element_types(fields: Mapping[str, str]) -> ElementTypes:
    """The types of B, A and D. Products must be summed in the accumulator of A and B, or in their type of 16 bits."""
    given = {name: _type(fields, name) for name in ("a_type", "b_type", "d_type")}
    for name, value in given.items():
        if value not in _TYPES:
            raise UnsupportedFeature(f"{name}={value[:40]}: {_type_reason(value)}")
    a, b, d = given.values()
    sums = type_spelling(_required(fields, "compute_type").casefold().removeprefix("c_"))
    try:
        types = ElementTypes(_TYPES[b], _TYPES[a], _TYPES[d])
        if types.narrow_sums and sums == f"{types.narrow_sums}_r":
            return replace(types, sums=types.narrow_sums)
    except OperationError as error:
        raise UnsupportedFeature(
            f"a_type={a}, b_type={b}, d_type={d}, compute_type={sums[:40]}: {error}"
        ) from error
    if sums in _CONVERTING:
        if not all(_is_held(each, _CONVERTING[sums]) for each in (a, b)):
            raise UnsupportedFeature(
                f"compute_type={sums}: operands are not converted before they are multiplied"
            )
        sums = "f32_r"
    if sums != f"{types.accumulator.name}_r":
        raise UnsupportedFeature(
            f"compute_type={sums[:40]}: {types.inputs} products are summed in {types.accumulator.name}"
        )
    return types


def _type_reason(type_: str) -> str:
    if "fnuz" in type_:
        return "fnuz types are not supported"
    if is_below_a_byte(type_.removesuffix("_r")):
        return "types of less than 8 bits are not supported"
    return f"available: {', '.join(_TYPES)}"


def _is_held(stored: str, other: str) -> bool:
    """Whether operands of the type `stored` keep their values if they are converted to the type `other`."""
    known = stored in _TYPES and other in _TYPES
    return stored == other or (known and element_type(_TYPES[other]).holds(element_type(_TYPES[stored])))


def _epilogue(fields: Mapping[str, str], alpha: float, beta: float) -> Epilogue:
    """The steps after the product: `scale(alpha)`, the bias, and `residual(beta)`, which adds C, as far as they count."""
    activation = (fields.get("activation_type") or "none").casefold()
    d_type, bias_type = _type(fields, "d_type"), _type(fields, "bias_type", "d_type")
    steps = [Step("scale", (alpha,))] if alpha != 1.0 else []
    if _is_set(fields.get("bias_vector", "")):
        if (source := fields.get("bias_source") or "d").casefold() != "d":
            raise UnsupportedFeature(f"bias_source={source[:40]}: only a bias of the result d is supported")
        if bias_type != d_type:
            raise UnsupportedFeature(
                f"a bias of type {bias_type[:40]}: only a bias of the result's type {d_type} is supported"
            )
        steps.append(Step("bias"))
    if _is_set(fields.get("scaleAlpha_vector", "")):
        if Step("bias") not in steps or type_spelling(fields.get("scale_type", "")) != d_type:
            raise UnsupportedFeature(
                "scaleAlpha_vector: only supported with a bias, and with scale_type and bias_type equal to d_type"
            )
        steps[-1] = Step("scale_shift")
    if beta:
        steps.append(Step("residual", (beta,)))
    if activation not in _ACTIVATIONS:
        raise UnsupportedFeature(f"activation_type={activation[:40]}: available: {', '.join(_ACTIVATIONS)}")
    return Epilogue((*steps, *Epilogue.parse(_ACTIVATIONS[activation]).steps))


def _matrix(fields: Mapping[str, str], name: str, shape: tuple[int, int], batch: int) -> _Matrix:
    """The storage of matrix `name`, with dense leading dimension and stride if they are not given."""
    rows, columns = shape
    leading = _whole(fields, f"ld{name}", rows)
    if leading < rows:
        raise WorkloadError(f"ld{name} must be at least {rows}, but got {leading}")
    stride = _whole(fields, f"stride_{name}", leading * columns, least=0) if batch > 1 else rows * columns
    return _Matrix(rows, columns, leading, stride)


def _layout(fields: Mapping[str, str], name: str) -> str:
    """The layout of the row-major operand."""
    given = _required(fields, name)
    if given.upper() not in _LAYOUTS:
        raise WorkloadError(f"{name}: expected N or T, but got {short_repr(given)}")
    return _LAYOUTS[given.upper()]


def _required(fields: Mapping[str, str], name: str) -> str:
    given = fields.get(name)
    if not given:
        raise WorkloadError(f"{name} is missing" if given is None else f"{name} has no value")
    return given


def _whole(fields: Mapping[str, str], name: str, default: int | None = None, *, least: int = 1) -> int:
    given = fields.get(name)
    if not given:
        if given is None and default is not None:
            return default
        raise WorkloadError(f"{name} is missing" if given is None else f"{name} has no value")
    value = _parse_whole(given)
    if value is None:
        limit = " of at most 18 digits" if re.fullmatch(r"-?[0-9]+", given) else ""
        raise WorkloadError(f"{name}: expected a whole number{limit}, but got {short_repr(given)}")
    if value < least:
        raise WorkloadError(f"{name} must be at least {least}, but got {value}")
    return value


@lru_cache(maxsize=10_000)
def _parse_whole(text: str) -> int | None:
    """The number that `text` is, None if it is no number: a log has few extents in many calls."""
    return int(text) if _WHOLE.fullmatch(text) else None


# -- flow lines ------------------------------------------------------------------------------------

# Parses the lines of a hipBLASLt log: YAML flow maps of scalars, `- {function: matmul, M: 768, ...}`.
#
# PyYAML takes 300 microseconds and more for a line of such a log. This parser accepts only what a log contains:
# one map on one line, plain and quoted scalars, nothing nested.


#: The longest line: a line of mask 128 with its kernel's name has about 1,500 characters.
MOST_CHARACTERS = 10_000
_KEY = r"[A-Za-z_][\w.+-]{0,99}"
#: A line as hipBLASLt writes it.
_PAIR = r"[A-Za-z_]\w*: [\w.+-]+"
_USUAL = re.compile(rf"- \{{((?:{_PAIR}, )*{_PAIR})\}} *", re.ASCII)
#: A plain scalar: it starts with a character without a meaning, and extends to a character that ends it.
_INNER = r"(?:[!\"$-+\--9;->@-Z\\^-z|~]|:(?![\s,\[\]{}]|$))"
_PLAIN = rf"(?:[\w.+/()<=;$~^]|-(?={_INNER})){_INNER}*(?: +{_INNER}+)*"
_FIELD = re.compile(
    rf" *(?P<key>{_KEY}) *:(?:(?: +(?P<plain>{_PLAIN})| +'(?P<single>(?:[ !-&(-~]|'')*)'"
    r'| +"(?P<double>[ !#-\[\]-~]*)")?) *(?P<end>[,}])',
    re.ASCII,
)
_OPENING = re.compile(r"- +\{")
_ENDING = re.compile(r" *(?: #.*)?")
_NUMBER = re.compile("[0-9]+")
#: Logs have fewer forms of lines, unless the lines name kernels: to try more patterns would take longer than to parse.
_MOST_PATTERNS = 16


class _Pattern(NamedTuple):
    """Matches lines that differ from a parsed one in the values of `numbers` only."""

    expression: re.Pattern[str]
    fields: dict[str, str]
    numbers: tuple[str, ...]


class FlowMaps:
    """Parses the lines of one log, most of which differ from an earlier line in whole numbers only.

    The first line of each form is parsed by `parse_flow_map` and becomes a pattern for the lines that follow, which
    takes a third of the time.
    """

    def __init__(self) -> None:
        #: The pattern of the last line is the first.
        self._patterns: list[_Pattern] = []

    def parse(self, line: str) -> dict[str, str]:
        """The fields of one line. Same result and errors as `parse_flow_map`."""
        if len(line) <= MOST_CHARACTERS:
            for at, pattern in enumerate(self._patterns):
                if match := pattern.expression.fullmatch(line):
                    if at:
                        self._patterns.insert(0, self._patterns.pop(at))
                    return {**pattern.fields, **dict(zip(pattern.numbers, match.groups(), strict=True))}
        fields = parse_flow_map(line)
        if len(self._patterns) < _MOST_PATTERNS and _USUAL.fullmatch(line):
            self._patterns.insert(0, _pattern(fields))
        return fields


def parse_flow_map(line: str) -> dict[str, str]:
    """The fields of one line, with every value as text: `- {M: 768, bias_vector: true}` -> {"M": "768", ...}.

    A field without a value is "". Raises WorkloadError for anything but one flat map.
    """
    if len(line) > MOST_CHARACTERS:
        raise WorkloadError(f"the line has more than {MOST_CHARACTERS} characters")
    usual = _USUAL.fullmatch(line)
    if usual is None:
        return _parse_slowly(line)
    texts = usual[1].replace(": ", ", ").split(", ")
    names = texts[::2]
    fields = dict(zip(names, texts[1::2], strict=True))
    if len(fields) != len(names):
        raise _repeated(next(name for name in names if names.count(name) > 1))
    return fields


def _pattern(fields: dict[str, str]) -> _Pattern:
    """The pattern of a line in hipBLASLt's form, in which other numbers give the same names and other values."""
    numbers = tuple(name for name, value in fields.items() if _NUMBER.fullmatch(value))
    values = {
        **{name: re.escape(value) for name, value in fields.items()},
        **dict.fromkeys(numbers, "([0-9]+)"),
    }
    pairs = ", ".join(f"{name}: {value}" for name, value in values.items())
    return _Pattern(re.compile(rf"- \{{{pairs}\}} *"), dict(fields), numbers)


def _parse_slowly(line: str) -> dict[str, str]:
    """Like `parse_flow_map`, for lines with quotes, empty values or other spacing; finds what is damaged."""
    opening = _OPENING.match(line)
    if opening is None:
        raise WorkloadError("expected a line such as `- {function: matmul, M: 768, ...}`")
    fields: dict[str, str] = {}
    at, end = opening.end(), ","
    while end == ",":
        field = _FIELD.match(line, at)
        if field is None:
            raise WorkloadError(_problem(line[at:].lstrip(" "), fields))
        if field["key"] in fields:
            raise _repeated(field["key"])
        quoted = field["double"] if field["single"] is None else field["single"].replace("''", "'")
        fields[field["key"]] = quoted if quoted is not None else field["plain"] or ""
        at, end = field.end(), field["end"]
    if not _ENDING.fullmatch(line, at):
        raise WorkloadError(f"unexpected text after the closing brace: {short_repr(line[at:].strip())}")
    return fields


def _problem(rest: str, fields: dict[str, str]) -> str:
    """What is wrong with the rest of a line, which does not start with a field."""
    after = f" after {next(reversed(fields))}" if fields else ""
    if not rest.strip():
        return f"the line ends{after}, without a closing brace"
    if rest.startswith((",", "}")):
        return f"an empty field{after}"
    if "}" not in rest:
        return f"the line ends within a field{after}: {short_repr(rest.strip()[:40])}"
    return f"expected `name: value`{after}, but got {short_repr(rest.strip()[:40])}"


def _repeated(name: str) -> WorkloadError:
    return WorkloadError(f"{name} is given twice")
