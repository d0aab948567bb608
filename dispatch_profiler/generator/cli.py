"""`generator.py`: arguments -> a sweep and configurations -> a generated tree."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dispatch_profiler.command import SUCCESS, Parser, add_tree_arguments, folder, run, say, warn
from dispatch_profiler.configurations import (
    ListedConfiguration,
    load_configurations,
    shipped_configurations,
    shipped_lists,
)
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.dispatches.tree import Tree
from dispatch_profiler.errors import OperationError, RangeError, UsageError
from dispatch_profiler.generator.emit import check_tree, emit
from dispatch_profiler.generator.plan import Choices, LeftOut, Plan, plan_generation
from dispatch_profiler.operations import (
    CONV_LAYOUTS,
    DEFAULT_TYPES,
    ELEMENT_TYPES,
    KINDS,
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Matmul,
    ShapeOption,
    SweepOptions,
    check_layouts,
    element_type,
    is_element_type,
    parse_range,
)
from dispatch_profiler.targets import DEFAULT_TARGET, FAMILIES, Target, parse_target
from dispatch_profiler.workloads import Sweep, sweep_workload

PROG = "generator.py"
T = TypeVar("T")
_RANGE = "V | START:END[:STEP],..."


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def _main(options: argparse.Namespace) -> int:
    target = parse_target(options.target)
    if target.note:
        warn(target.note)
    selection = Selection.parse(options.dispatches, options.operation_kind)
    result = sweep_workload(_sweep(options, selection.kinds))
    choices = Choices(
        _entries(options.configurations, target),
        selection,
        _slices(options),
        options.default_config == "only",
    )
    plan = plan_generation(result.workload, target, choices)
    tree = Tree(folder(options.generated_dir))
    if options.dry_run:
        check_tree(plan, tree)
        for operation, dispatches in plan.groups:
            _announce(tree.source(operation), dispatches)
    else:
        try:
            for path, dispatches in emit(plan, tree):
                if not options.quiet:
                    _announce(path, dispatches)
        except BrokenPipeError:
            warn(f"{options.prog}: stopped, because nobody reads what it prints: the tree lacks the rest")
            raise
    points = tuple(LeftOut("a point of the sweep", reason) for reason in result.left_out)
    _summarize(plan, points, options)
    return SUCCESS


def _entries(given: str | None, target: Target) -> tuple[ListedConfiguration, ...]:
    """What --configurations names, a file or a list that ships; the target's own list without it."""
    if not given:
        return shipped_configurations(target.shipped_list)
    path = folder(given)
    if given in shipped_lists() and not path.exists():
        return shipped_configurations(given)
    return load_configurations(path)


# -- arguments -------------------------------------------------------------------------------------


def make_parser(prog: str = PROG) -> Parser:
    """What this command takes."""
    parser = Parser(prog, "Generate MLIR dispatches: operations crossed with tuning configurations.")
    add_tree_arguments(parser)
    shapes = parser.add_argument_group(
        "problem shapes", "Given shapes replace the predefined ones. The end of a range is included."
    )
    for option in _shape_options():
        shapes.add_argument(
            *option.spellings, dest=option.name, metavar=option.metavar, help=option.help or None
        )
    types = parser.add_argument_group("types and layouts")
    known = ", ".join(name for name in ELEMENT_TYPES if name != "i32")
    types.add_argument(
        "--lhs", metavar="TYPE,...", help=f"element type of lhs, with its layout or not: {known}"
    )
    types.add_argument("--rhs", metavar="TYPE,...", help="default: as lhs")
    types.add_argument("--result", metavar="TYPE,...", help="default: as lhs; f32 for f8E4M3FN, i32 for i8")
    types.add_argument("--layout", metavar="LAYOUT,...", help="tt, tn, nt, nn (lhs, rhs); nhwc, nchw")
    types.add_argument(
        "--epilogue", default="none", metavar="EPILOGUE,...", help="none, bias, relu, gelu, sigmoid, tanh, bias+relu, ..."
    )  # fmt: skip
    tuning = parser.add_argument_group("configurations")
    tuning.add_argument(
        "--target", default=DEFAULT_TARGET, help=f"one of {', '.join(FAMILIES)} (default: %(default)s)"
    )
    tuning.add_argument(
        "--configurations",
        metavar="FILE|LIST",
        help=f"YAML list instead of the target's own, or another that ships: {', '.join(shipped_lists())}",
    )
    tuning.add_argument(
        "--split-k-slices", "--split_k_slices", metavar=_RANGE, help="also split k into so many slices"
    )
    tuning.add_argument("--split_k_mode", choices=["N/A", "parallel"], help=argparse.SUPPRESS)
    tuning.add_argument(
        "--default-config", nargs="?", const="true", default="true", choices=["true", "only"],
        help="the compiler's own choice is among them, unless --dispatches leaves it out; 'only': nothing else",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would be generated, write nothing")
    parser.add_argument("--verbose", action="store_true", help="name each dispatch that is left out")
    return parser


def _shape_options() -> tuple[ShapeOption, ...]:
    """Options of the shapes of every kind; kinds that share options share the objects."""
    return tuple(dict.fromkeys(option for kind in KINDS.values() for option in kind.shape_options))


def _sweep(options: argparse.Namespace, kinds: tuple[str, ...]) -> Sweep:
    typed = _types(options, kinds)
    shapes = {each.name: _given(options, each.name, each.parse) for each in _shape_options()}
    given = ("lhs", "rhs", "result", "layout")
    return Sweep(
        kinds,
        SweepOptions(
            shapes={name: values for name, values in shapes.items() if values is not None},
            types=typed.types,
            layouts=typed.layouts,
            conv_layouts=typed.conv_layouts,
            epilogues=tuple(dict.fromkeys(Epilogue.parse(text) for text in _items(options.epilogue))),
        ),
        tuple(name for name in given if getattr(options, name)),
    )


def _range(options: argparse.Namespace, name: str) -> tuple[int, ...] | None:
    return _given(options, name, parse_range)


def _given(options: argparse.Namespace, name: str, parse: Callable[[str], T]) -> T | None:
    """What an option holds; None if it was not given. RangeError names the option."""
    text = getattr(options, name)
    if text is None:
        return None
    try:
        return parse(text)
    except RangeError as error:
        raise RangeError(f"--{name.replace('_', '-')}: {error}", hint=error.hint) from error


def _slices(options: argparse.Namespace) -> tuple[int, ...] | None:
    return () if options.split_k_slices == "N/A" else _range(options, "split_k_slices")


# -- types and layouts -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Typed:
    types: tuple[ElementTypes, ...]
    layouts: tuple[tuple[str, str], ...]
    conv_layouts: tuple[str, ...]


_MATMUL_LAYOUTS = {"tt": ("t", "t"), "tn": ("t", "n"), "nt": ("n", "t"), "nn": ("n", "n")}
_CONV_TAGS = tuple(tag for pair in CONV_LAYOUTS.values() for tag in pair)
_TAGS = ("t", "n", *_CONV_TAGS)


def _types(options: argparse.Namespace, kinds: tuple[str, ...]) -> _Typed:
    lhs, lhs_tag = _tagged(options.lhs)
    rhs, rhs_tag = _tagged(options.rhs)
    result, result_tag = _tagged(options.result)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    if lhs or rhs or result:
        lhs = lhs or rhs or result
        rhs = rhs or lhs
        result = result or [_natural_result(name) for name in lhs]
        types = tuple(ElementTypes(*triple) for triple in _aligned(lhs, rhs, result))
    return _with_layouts(types, _listed(options.layout), (lhs_tag, rhs_tag, result_tag), kinds)


def _tagged(text: str | None) -> tuple[list[str], str]:
    """`f16t,bf16t` -> (["f16", "bf16"], "t")."""
    names: list[str] = []
    tags: dict[str, None] = {}
    for part in _items(text):
        tag = next((t for t in _TAGS if part.endswith(t) and is_element_type(part.removesuffix(t))), "")
        names.append(element_type(part.removesuffix(tag) if tag else part).name)
        tags[tag] = None
    if len(tags) > 1:
        raise UsageError(
            f"one layout a tensor goes with its type, but got {text}", hint="list several with --layout"
        )
    return names, next(iter(tags), "")


def _items(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text is not None else []


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
    types: tuple[ElementTypes, ...], listed: list[str], tags: tuple[str, str, str], kinds: tuple[str, ...]
) -> _Typed:
    """Layouts from --layout or from the tags of the types, checked against the kinds asked for."""
    if any(tags) and listed:
        raise UsageError(
            f"layouts stand with the types ({', '.join(filter(None, tags))}) and in --layout ({', '.join(listed)})",
            hint="give them in one place",
        )
    conv = tuple(x for x in listed if x in CONV_LAYOUTS)
    matmul = tuple(_MATMUL_LAYOUTS[x] for x in listed if x in _MATMUL_LAYOUTS)
    if any(tag in _CONV_TAGS for tag in tags):
        conv = (_conv_layout(tags),)
    elif any(tags):
        check_layouts(tags[0] or "t", tags[1] or "t", tags[2] or "t")
        matmul = ((tags[0] or "t", tags[1] or "t"),)
    for given, names, other in ((conv, (Conv2d.kind,), "conv2d"), (matmul, _PRODUCTS, "matmul")):
        if given and kinds and not any(kind in names for kind in kinds):
            said = ", ".join(listed or filter(None, tags))
            raise UsageError(
                f"the layout {said} is one of {other}, but the kinds asked for are {', '.join(kinds)}",
                hint="matmul and batch_matmul take t and n, conv2d takes nhwc and nchw",
            )
    return _Typed(types, matmul or (("t", "t"),), conv or ("nhwc",))


_PRODUCTS = (Matmul.kind, BatchMatmul.kind)


def _conv_layout(tags: tuple[str, str, str]) -> str:
    for data, filter_ in CONV_LAYOUTS.values():
        if all(tag in ("", want) for tag, want in zip(tags, (data, filter_, data), strict=True)):
            return data
    said = ", ".join(f"{role}={tag}" for role, tag in zip(("lhs", "rhs", "result"), tags, strict=True) if tag)
    known = " or ".join(f"{data}, {filter_}, {data}" for data, filter_ in CONV_LAYOUTS.values())
    raise OperationError(f"no convolution has the layouts {said}", hint=f"lhs, rhs and result are {known}")


def _listed(layout: str | None) -> list[str]:
    known = [*_MATMUL_LAYOUTS, *CONV_LAYOUTS]
    for part in _items(layout):
        if part not in known:
            raise UsageError(f"unknown layout {part!r}", hint=f"available: {', '.join(known)}")
    return _items(layout)


# -- output ----------------------------------------------------------------------------------------


def _announce(path: Path, dispatches: tuple[Dispatch, ...]) -> None:
    print(f"[Generating]: {path if path.is_absolute() else os.path.join('.', path)}")
    for dispatch in dispatches:
        print(f"    Emitting tuning configuration : {dispatch.configuration.name}")


def _summarize(plan: Plan, points: tuple[LeftOut, ...], options: argparse.Namespace) -> None:
    left_out = [*points, *plan.left_out]
    verb = "Would generate" if options.dry_run else "Generated"
    say(
        f"{verb} {plan.dispatch_count} dispatches of {len(plan.groups)} operations for {plan.target.name};"
        f" left out {len(left_out)}" + (":" if left_out else ".")
    )
    if options.verbose:
        for each in left_out:
            say(f"    {each.name}: {each.reason}")
        return
    counts = Counter(each.reason for each in left_out).most_common()
    for reason, count in counts[:5]:
        say(f"    {count} x {reason}")
    if len(counts) > 5:
        rest = sum(count for _, count in counts[5:])
        say(f"    {rest} x {len(counts) - 5} other reasons; --verbose lists them all")
