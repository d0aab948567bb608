"""`--lhs`, `--rhs`, `--result` and `--layout`: text -> element types and layouts to sweep over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.errors import OperationError, UsageError, did_you_mean
from dispatch_profiler.generator.plan import LeftOut
from dispatch_profiler.operations import (
    CONV_LAYOUTS,
    DEFAULT_TYPES,
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Matmul,
    check_layouts,
    element_type,
    is_element_type,
)

_PRODUCTS = (Matmul.kind, BatchMatmul.kind)
_MATMUL_LAYOUTS = {"tt": ("t", "t"), "tn": ("t", "n"), "nt": ("n", "t"), "nn": ("n", "n")}
_CONV_TAGS = tuple(tag for pair in CONV_LAYOUTS.values() for tag in pair)
_TAGS = ("t", "n", *_CONV_TAGS)


@dataclass(frozen=True)
class TypeTexts:
    """The text of the options; None if not given."""

    lhs: str | None
    rhs: str | None
    result: str | None
    layout: str | None


@dataclass(frozen=True)
class TypedOptions:
    """What to sweep over, the type combinations that no operation supports, and the layouts that were given."""

    types: tuple[ElementTypes, ...]
    layouts: tuple[tuple[str, str], ...]
    conv_layouts: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    given_layouts: tuple[str, ...] = ()
    given_conv_layouts: tuple[str, ...] = ()


def parse_types(texts: TypeTexts, kinds: Sequence[str]) -> TypedOptions:
    """Parse the options for the requested operation `kinds`; empty means every kind.

    Raises UsageError for an unknown name, for lists of different lengths and for a layout that none of
    `kinds` has, and OperationError if no combination of types is valid.
    """
    lhs, lhs_tag = _tagged(texts.lhs)
    rhs, rhs_tag = _tagged(texts.rhs)
    result, result_tag = _tagged(texts.result)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    left_out: tuple[LeftOut, ...] = ()
    if lhs or rhs or result:
        lhs = lhs or rhs or result
        rhs = rhs or lhs
        result = result or [_natural_result(name) for name in lhs]
        types, left_out = _combined(_aligned(lhs, rhs, result))
    return _with_layouts(types, left_out, _listed(texts.layout), (lhs_tag, rhs_tag, result_tag), kinds)


def items_of(text: str | None) -> list[str]:
    """The parts of a comma list."""
    return [part.strip() for part in text.split(",")] if text is not None else []


def _combined(triples: list[tuple[str, ...]]) -> tuple[tuple[ElementTypes, ...], tuple[LeftOut, ...]]:
    """The valid combinations, and the others with the reason."""
    valid: list[ElementTypes] = []
    left_out: list[LeftOut] = []
    errors: list[OperationError] = []
    for lhs, rhs, result in triples:
        try:
            valid.append(ElementTypes(lhs, rhs, result))
        except OperationError as error:
            errors.append(error)
            left_out.append(LeftOut(f"--lhs={lhs} --rhs={rhs} --result={result}", str(error)))
    if not valid:
        raise errors[0]
    return tuple(valid), tuple(left_out)


def _tagged(text: str | None) -> tuple[list[str], str]:
    """`f16t,bf16t` -> (["f16", "bf16"], "t")."""
    names: list[str] = []
    tags: dict[str, None] = {}
    for part in items_of(text):
        tag = next((t for t in _TAGS if part.endswith(t) and is_element_type(part.removesuffix(t))), "")
        names.append(element_type(part.removesuffix(tag) if tag else part).name)
        tags[tag] = None
    if len(tags) > 1:
        raise UsageError(
            f"{', '.join(items_of(text))} has several layouts for one tensor",
            hint="list them with --layout",
        )
    return names, next(iter(tags), "")


def _natural_result(name: str) -> str:
    type_ = element_type(name)
    return type_.accumulator_name if type_.bits == 8 else type_.name


def _aligned(*columns: list[str]) -> list[tuple[str, ...]]:
    longest = max(map(len, columns))
    if any(len(column) not in (1, longest) for column in columns):
        counts = ", ".join(str(len(column)) for column in columns)
        raise UsageError(
            f"--lhs, --rhs and --result must list one type or equally many, but got {counts}",
            hint="write --lhs=f16,f32 --result=f32 or --lhs=f16,f32 --result=f16,f32",
        )
    return list(zip(*(column * longest if len(column) == 1 else column for column in columns), strict=True))


def _with_layouts(
    types: tuple[ElementTypes, ...],
    left_out: tuple[LeftOut, ...],
    listed: list[str],
    tags: tuple[str, str, str],
    kinds: Sequence[str],
) -> TypedOptions:
    """Layouts from --layout or from the types' suffixes, checked against the requested kinds."""
    if any(tags) and listed:
        raise UsageError(
            f"layouts are given with the types ({', '.join(filter(None, tags))}) and in --layout ({', '.join(listed)})",
            hint="use one of the two",
        )
    conv = tuple(x for x in listed if x in CONV_LAYOUTS)
    matmul = tuple(x for x in listed if x in _MATMUL_LAYOUTS)
    if any(tag in _CONV_TAGS for tag in tags):
        conv = (_conv_layout(tags),)
    elif any(tags):
        check_layouts(tags[0] or "t", tags[1] or "t", tags[2] or "t")
        matmul = ((tags[0] or "t") + (tags[1] or "t"),)
    for given, names, other in ((conv, (Conv2d.kind,), "conv2d"), (matmul, _PRODUCTS, "matmul")):
        if given and kinds and not any(kind in names for kind in kinds):
            layout = ", ".join(listed or filter(None, tags))
            raise UsageError(
                f"the layout {layout} is for {other}, but the requested kinds are {', '.join(kinds)}",
                hint="matmul and batch_matmul support t and n, conv2d supports nhwc and nchw",
            )
    layouts = tuple(_MATMUL_LAYOUTS[x] for x in matmul) or (("t", "t"),)
    return TypedOptions(types, layouts, conv or ("nhwc",), left_out, matmul, conv)


def _conv_layout(tags: tuple[str, str, str]) -> str:
    for data, filter_ in CONV_LAYOUTS.values():
        if all(tag in ("", want) for tag, want in zip(tags, (data, filter_, data), strict=True)):
            return data
    given = ", ".join(
        f"{role}={tag}" for role, tag in zip(("lhs", "rhs", "result"), tags, strict=True) if tag
    )
    known = " or ".join(f"{data}, {filter_}, {data}" for data, filter_ in CONV_LAYOUTS.values())
    raise OperationError(f"no convolution has the layouts {given}", hint=f"lhs, rhs and result are {known}")


def _listed(layout: str | None) -> list[str]:
    known = [*_MATMUL_LAYOUTS, *CONV_LAYOUTS]
    for part in items_of(layout):
        if part not in known:
            raise UsageError(f"unknown layout {part!r}", hint=did_you_mean(part, known))
    return items_of(layout)
