"""`--lhs`, `--rhs`, `--result` and `--layout`: text -> element types and layouts to sweep over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.errors import OperationError, UsageError, did_you_mean
from dispatch_profiler.generator.plan import LeftOut
from dispatch_profiler.operations import (
    CONV_LAYOUTS,
    CONV_ROLES,
    CONVOLUTION_KINDS,
    DEFAULT_TYPES,
    BatchMatmul,
    ElementTypes,
    Matmul,
    check_layouts,
    element_type,
    filter_letters,
    is_element_type,
    layout_rank,
    natural_result,
    read_layout,
    words_of,
)

_PRODUCTS = (Matmul.kind, BatchMatmul.kind)
_MATMUL_LAYOUTS = {"tt": ("t", "t"), "tn": ("t", "n"), "nt": ("n", "t"), "nn": ("n", "n")}
#: Letters of a tensor of convolutions after its type, as in `f16nhwc`.
_CONV_TAG = re.compile("[ncdhwfkzyx]{3,5}")


@dataclass(frozen=True)
class TypeTexts:
    """The text of the options; None if not given."""

    lhs: str | None
    rhs: str | None
    result: str | None
    layout: str | None


@dataclass(frozen=True)
class TypedOptions:
    """The types and layouts to sweep over, the combinations that no operation supports, and the layouts given."""

    types: tuple[ElementTypes, ...]
    layouts: tuple[tuple[str, str], ...]
    conv_layouts: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    given_layouts: tuple[str, ...] = ()


def parse_types(
    texts: TypeTexts, kinds: Sequence[str], conv_modes: Sequence[str] = ("forward",)
) -> TypedOptions:
    """Parse the options for the requested operation `kinds`; empty means every kind.

    For convolutions, lhs, rhs and result have the roles of a convolution in its mode, one of `conv_modes`.

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
        aligned = _aligned(lhs, rhs, result) if result else _with_results(_aligned(lhs, rhs))
        types, left_out = _combined(aligned)
    tags = (lhs_tag, rhs_tag, result_tag)
    matmul, conv = _layouts_of(_listed(texts.layout), tags, conv_modes)
    _check_kinds(matmul, conv, kinds, items_of(texts.layout) or [tag for tag in tags if tag])
    layouts = tuple(_MATMUL_LAYOUTS[x] for x in matmul) or (("t", "t"),)
    return TypedOptions(types, layouts, conv, left_out, matmul)


def items_of(text: str | None) -> list[str]:
    """The parts of a comma list."""
    return [part.strip() for part in text.split(",")] if text is not None else []


def _with_results(pairs: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(lhs, rhs, natural_result(lhs, rhs)) for lhs, rhs in pairs]


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
        tag = _tag_of(part)
        names.append(element_type(part.removesuffix(tag) if tag else part).name)
        tags[tag] = None
    if len(tags) > 1:
        raise UsageError(
            f"{', '.join(items_of(text))} has several layouts for one tensor",
            hint="list them with --layout",
        )
    return names, next(iter(tags), "")


def _aligned(*columns: list[str]) -> list[tuple[str, ...]]:
    longest = max(map(len, columns))
    if any(len(column) not in (1, longest) for column in columns):
        counts = ", ".join(str(len(column)) for column in columns)
        raise UsageError(
            f"--lhs, --rhs and --result must list one type or equally many, but got {counts}",
            hint="write --lhs=f16,f32 --result=f32 or --lhs=f16,f32 --result=f16,f32",
        )
    return list(zip(*(column * longest if len(column) == 1 else column for column in columns), strict=True))


def _tag_of(part: str) -> str:
    """The layout after a type: `nhwc` of `f16nhwc`; "" without a layout."""
    for length in (1, 3, 4, 5):
        tag = part[-length:]
        is_tag = tag in ("t", "n") if length == 1 else _CONV_TAG.fullmatch(tag)
        if is_tag and is_element_type(part[:-length]):
            return tag
    return ""


def _layouts_of(
    listed: list[str], tags: tuple[str, str, str], conv_modes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layouts of matrix products and of convolutions, from --layout or from the types' suffixes."""
    if any(tags) and listed:
        raise UsageError(
            f"layouts are given with the types ({', '.join(filter(None, tags))}) and in --layout ({', '.join(listed)})",
            hint="use one of the two",
        )
    if any(len(tag) > 1 for tag in tags):
        return (), (_conv_layout(tags, conv_modes),)
    if any(tags):
        check_layouts(tags[0] or "t", tags[1] or "t", tags[2] or "t")
        return ((tags[0] or "t") + (tags[1] or "t"),), ()
    matmul = tuple(x for x in listed if x in _MATMUL_LAYOUTS)
    return matmul, tuple(x for x in listed if x not in _MATMUL_LAYOUTS)


def _check_kinds(matmul: Sequence[str], conv: Sequence[str], kinds: Sequence[str], given: list[str]) -> None:
    """Raise UsageError if layouts were given that none of the requested kinds has."""
    conv_kinds = tuple(dict.fromkeys(CONVOLUTION_KINDS[layout_rank(layout)] for layout in conv))
    for layouts, names, other in (
        (conv, conv_kinds, " and ".join(conv_kinds)),
        (matmul, _PRODUCTS, "matmul"),
    ):
        if layouts and kinds and not any(kind in names for kind in kinds):
            raise UsageError(
                f"the layout {', '.join(given)} is for {other}, but the requested kinds are {', '.join(kinds)}",
                hint="matmul and batch_matmul support t and n; conv1d nwc and ncw, conv2d nhwc and nchw, conv3d ndhwc "
                "and ncdhw, and all three triples such as nhwc_fhwc_nhwc",
            )


def _conv_layout(tags: tuple[str, str, str], modes: Sequence[str]) -> str:
    """The word or triple for the layouts of lhs, rhs and result; a layout that is not given follows the others."""
    if len(modes) > 1:
        raise UsageError(
            f"layouts are given with the types, but --conv-mode has several modes ({', '.join(modes)})",
            hint="use --layout, with the layouts of input, filter and output",
        )
    given = {role: tag for role, tag in zip(CONV_ROLES[modes[0]], tags, strict=True) if tag}
    if "filter" in given:
        given["filter"] = filter_letters(given["filter"])
    for word, layouts in CONV_LAYOUTS.items():
        named = dict(zip(("input", "filter", "output"), layouts, strict=True))
        if all(named[role] == tag for role, tag in given.items()):
            return word
    image = given.get("input") or given.get("output") or words_of(layout_rank(given["filter"]))[0]
    filter_ = given.get("filter") or CONV_LAYOUTS.get(image, ("", ""))[1]
    if not filter_:
        shown = ", ".join(f"{role}={tag}" for role, tag in given.items())
        raise OperationError(
            f"the filter has no layout, but the others are {shown}",
            hint="add the layout of the filter, such as hwcf",
        )
    return read_layout("_".join((given.get("input", image), filter_, given.get("output", image))))


def _listed(layout: str | None) -> list[str]:
    known = [*_MATMUL_LAYOUTS, *CONV_LAYOUTS]
    layouts = []
    for part in items_of(layout):
        if "_" in part:
            layouts.append(read_layout(part))
        elif part in known:
            layouts.append(part)
        else:
            raise UsageError(f"unknown layout {part!r}", hint=did_you_mean(part, known))
    return layouts
