"""`generator.py`: arguments -> a sweep and configurations -> a generated tree."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dispatch_profiler import startup
from dispatch_profiler.command import (
    FAILED,
    SUCCESS,
    Parser,
    add_tree_arguments,
    fitted,
    folder,
    run,
    say,
    warn,
    writable,
)
from dispatch_profiler.configurations import (
    ListedConfiguration,
    load_configurations,
    shipped_configurations,
    shipped_lists,
)
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.dispatches.tree import Tree
from dispatch_profiler.errors import RangeError
from dispatch_profiler.generator.emit import check_tree, emit
from dispatch_profiler.generator.plan import Choices, LeftOut, Plan, plan_generation
from dispatch_profiler.generator.type_options import TypedOptions, TypeTexts, parse_types
from dispatch_profiler.generator.workload_files import read_files
from dispatch_profiler.operations import (
    CONVOLUTION_KINDS,
    ELEMENT_TYPES,
    KINDS,
    Epilogue,
    ShapeOption,
    SweepOptions,
    layout_rank,
    parse_range,
    unreached_ends,
)
from dispatch_profiler.targets import DEFAULT_TARGET, FAMILIES, Target, parse_target
from dispatch_profiler.workloads import Sweep, Workload, sweep_workload, write_workload

PROG = "generator.py"
#: The options that --help shows.
_COMMON = (
    "--problem-m",
    "--problem-n",
    "--problem-k",
    "--lhs",
    "--workload",
    "--target",
    "--dispatches",
    "--operation-kind",
    "--generated-dir",
    "--dry-run",
)
T = TypeVar("T")
#: With more dispatches than this, print one line per operation.
_MAX_LINES = 100
#: Maximum left-out items and reasons that are listed without --verbose.
_MAX_NAMED, _MAX_REASONS = 20, 5
_RANGE = "V | START:END[:STEP],..."
_TYPE_OPTIONS = ("lhs", "rhs", "result", "layout", "epilogue")
_LAYOUT_HELP = (
    "of matrix products: tt, tn, nt, nn (lhs, rhs); of convolutions: nwc, ncw, nhwc, nchw, ndhwc, ncdhw, or the layouts "
    "of input, filter and output, such as nhwc_fhwc_nhwc"
)


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments)


def _main(options: argparse.Namespace) -> int:
    target = parse_target(options.target)
    if target.note:
        warn(target.note)
    selection = Selection.parse(options.dispatches, options.operation_kind)
    save_to = writable("--save-workload", options.save_workload) if options.save_workload else None
    requested = _read_workload(options) if options.workload else _swept(options, selection)
    choices = Choices(
        _entries(options.configurations, target),
        selection,
        _slices(options),
        options.default_config == "only",
        adds_fastest=not options.configurations and options.default_config != "only",
    )
    plan = plan_generation(requested.workload, target, choices)
    _generate(plan, Tree(folder(options.generated_dir)), options)
    if save_to and not options.dry_run:
        write_workload(requested.workload, save_to)
    _summarize(plan, requested.left_out, requested.points, options)
    return FAILED if requested.has_damage else SUCCESS


@dataclass(frozen=True)
class _Requested:
    """The operations to generate, and the parts of the request that were left out: types, and points of the sweep."""

    workload: Workload
    left_out: tuple[LeftOut, ...] = ()
    points: tuple[str, ...] = ()
    #: Whether a file has damaged lines.
    has_damage: bool = False


def _swept(options: argparse.Namespace, selection: Selection) -> _Requested:
    """The operations of the sweep that the options describe."""
    texts = TypeTexts(options.lhs, options.rhs, options.result, options.layout)
    shapes = _shapes(options)
    typed = parse_types(texts, selection.kinds, shapes.get("conv_mode", ("forward",)))
    result = sweep_workload(_sweep(options, shapes, typed, selection.kinds))
    _warn_about_ends(options)
    _warn_about_layouts(typed, result.workload)
    return _Requested(result.workload, typed.left_out, result.left_out)


def _read_workload(options: argparse.Namespace) -> _Requested:
    """The operations of the files of --workload."""
    shapes = [each.spellings[0] for each in _shape_options() if getattr(options, each.name) is not None]
    types = [f"--{name}" for name in _TYPE_OPTIONS if getattr(options, name) is not None]
    reading = read_files(options, [*shapes, *types])
    return _Requested(reading.workload, has_damage=bool(reading.damaged))


def _generate(plan: Plan, tree: Tree, options: argparse.Namespace) -> None:
    """Write the tree, or with --dry-run only print the files."""
    announce = _make_printer(plan, options)
    if options.dry_run:
        check_tree(plan, tree)
        for operation, dispatches in plan.groups:
            announce(tree.source(operation), dispatches)
        return
    try:
        for path, dispatches in emit(plan, tree):
            announce(path, dispatches)
    except BrokenPipeError:
        warn(f"{options.prog}: stopped, because standard output was closed: the tree is incomplete")
        raise


def _entries(given: str | None, target: Target) -> tuple[ListedConfiguration, ...]:
    """The entries of --configurations, a file or a shipped list; by default the target's list."""
    if not given:
        return shipped_configurations(target.shipped_list)
    path = folder(given)
    if given in shipped_lists() and not path.exists():
        return shipped_configurations(given)
    return load_configurations(path)


# -- arguments -------------------------------------------------------------------------------------


def make_parser(prog: str = PROG) -> Parser:
    """The parser of the command's arguments."""
    page = HelpPage(
        _COMMON,
        (
            f"{prog} --problem-m=768 --problem-n=512 --lhs=f32",
            f"{prog} --workload=log.yaml --target=cuda:sm_80",
        ),
    )
    parser = Parser(prog, "Generate MLIR dispatches: operations crossed with tuning configurations.", page)
    add_tree_arguments(parser)
    _add_workload_arguments(parser)
    shapes = parser.add_argument_group(
        "problem shapes", "Given shapes replace the predefined ones. The end of a range is included."
    )
    for option in _shape_options():
        flag: dict[str, Any] = {"nargs": "?", "const": option.flag} if option.flag else {}
        shapes.add_argument(
            *option.spellings, dest=option.name, metavar=option.metavar, help=option.help or None, **flag
        )
    types = parser.add_argument_group("types and layouts")
    known = ", ".join(name for name in ELEMENT_TYPES if name != "i32")
    types.add_argument(
        "--lhs",
        metavar="TYPE,...",
        help=f"element type of lhs, optionally with its layout: {known} (default: f16 and f32)",
    )
    types.add_argument(
        "--rhs", metavar="TYPE,...", help="default: the types of lhs; other types in products only"
    )
    types.add_argument(
        "--result",
        metavar="TYPE,...",
        help="default: the types of lhs, or the wider of lhs and rhs; f32 for f8, i32 for i8",
    )
    types.add_argument("--layout", metavar="LAYOUT,...", help=_LAYOUT_HELP)
    types.add_argument(
        "--epilogue",
        metavar="EPILOGUE,...",
        help="none, or steps joined by +, such as bias+relu or scale_shift+residual+clamp(-1,1); steps: "
        "bias, channel_scale, row_scale, scale_shift, residual, residual(FACTOR), scale(FACTOR), relu, relu6, clamp(LO,HI), leaky_relu, leaky_relu(SLOPE), hardswish, "
        "hardsigmoid, gelu, gelu_tanh, silu, sigmoid, tanh",
    )
    tuning = parser.add_argument_group("configurations")
    tuning.add_argument(
        "--target", default=DEFAULT_TARGET, help=f"one of {', '.join(FAMILIES)} (default: %(default)s)"
    )
    tuning.add_argument(
        "--configurations",
        metavar="FILE|LIST",
        help="YAML file, or shipped list, that replaces the target's and the fastest known form: "
        f"{', '.join(shipped_lists())}",
    )
    tuning.add_argument(
        "--split-k-slices", "--split_k_slices", metavar=_RANGE, help="also split k into this many slices"
    )
    tuning.add_argument("--split_k_mode", choices=["N/A", "parallel"], help=argparse.SUPPRESS)
    tuning.add_argument(
        "--default-config", nargs="?", const="true", default="true", choices=["true", "only"],
        help="include the compiler's own choice, unless --dispatches excludes it; 'only': generate nothing else",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be generated, and write nothing"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="list each configuration, and each dispatch that is left out"
    )
    return parser


def _add_workload_arguments(parser: Parser) -> None:
    workloads = parser.add_argument_group("workloads")
    workloads.add_argument(
        "--workload",
        action="append",
        metavar="FILE",
        help="generate the operations of a log (hipBLASLt, rocBLAS, MIOpen), a CSV of shapes or a workload.yaml; repeatable",
    )
    workloads.add_argument(
        "--save-workload",
        metavar="FILE",
        help="also write the operations, with their counts and origins, as a workload.yaml",
    )


def _shape_options() -> tuple[ShapeOption, ...]:
    """Shape options of all kinds, without duplicates."""
    return tuple(dict.fromkeys(option for kind in KINDS.values() for option in kind.shape_options))


def _shapes(options: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    """Values of the shape options that were given."""
    shapes = {each.name: _parsed(options, each.name, each.parse) for each in _shape_options()}
    return {name: values for name, values in shapes.items() if values is not None}


def _sweep(
    options: argparse.Namespace,
    shapes: dict[str, tuple[Any, ...]],
    typed: TypedOptions,
    kinds: tuple[str, ...],
) -> Sweep:
    return Sweep(
        kinds,
        SweepOptions(
            shapes=shapes,
            types=typed.types,
            layouts=typed.layouts,
            conv_layouts=typed.conv_layouts,
            epilogues=None if options.epilogue is None else Epilogue.parse_list(options.epilogue),
        ),
        tuple(name for name in _TYPE_OPTIONS if getattr(options, name)),
    )


def _range(options: argparse.Namespace, name: str) -> tuple[int, ...] | None:
    return _parsed(options, name, parse_range)


def _parsed(options: argparse.Namespace, name: str, parse: Callable[[str], T]) -> T | None:
    """The value of an option; None if it was not given. Raises RangeError, which names the option."""
    text = getattr(options, name)
    if text is None:
        return None
    try:
        return parse(text)
    except RangeError as error:
        raise RangeError(f"--{name.replace('_', '-')}: {error}", hint=error.hint) from error


def _slices(options: argparse.Namespace) -> tuple[int, ...] | None:
    return () if options.split_k_slices == "N/A" else _range(options, "split_k_slices")


# -- output ----------------------------------------------------------------------------------------


def _make_printer(plan: Plan, options: argparse.Namespace) -> Callable[[Path, tuple[Dispatch, ...]], None]:
    """A function that prints a file, with a line for each configuration unless there are many."""
    if options.quiet and not options.dry_run:
        return lambda path, dispatches: None
    lists_each = options.verbose or plan.dispatch_count <= _MAX_LINES

    def print_file(path: Path, dispatches: tuple[Dispatch, ...]) -> None:
        shown = path if path.is_absolute() else os.path.join(".", path)
        count = counted(len(dispatches), "configuration")
        print(fitted(f"[Generating]: {shown}" + ("" if lists_each else f" ({count})"), sys.stdout))
        for dispatch in dispatches if lists_each else ():
            print(fitted(f"    Emitting tuning configuration : {dispatch.configuration.name}", sys.stdout))

    return print_file


def _warn_about_ends(options: argparse.Namespace) -> None:
    """Warn about ranges whose steps do not reach their end."""
    for name in (*(each.name for each in _shape_options()), "split_k_slices"):
        for part, last in unreached_ends(getattr(options, name) or ""):
            end = part.split(":")[1]
            warn(f"--{name.replace('_', '-')}: {part} ends at {last}: the next step would pass {end}")


def _warn_about_layouts(typed: TypedOptions, workload: Workload) -> None:
    """Warn about layouts that no operation has."""
    generated = {operation.kind for operation in workload.operations}
    unused = [
        layout for layout in typed.conv_layouts if CONVOLUTION_KINDS[layout_rank(layout)] not in generated
    ]
    if unused:
        kinds = dict.fromkeys(CONVOLUTION_KINDS[layout_rank(layout)] for layout in unused)
        warn(
            f"the layout {', '.join(unused)} has no effect: no generated operation is a {' or '.join(kinds)}"
        )
    if typed.given_layouts and not any(operation.product for operation in workload.operations):
        warn(
            f"the layout {', '.join(typed.given_layouts)} has no effect: no generated operation is a matrix product"
        )


def _summarize(
    plan: Plan, request: Sequence[LeftOut], points: Sequence[str], options: argparse.Namespace
) -> None:
    """Print counts of generated and of left-out dispatches: requested types by name, dispatches by reason."""
    dispatches = [*(LeftOut("a point of the sweep", reason) for reason in points), *plan.left_out]
    count = len(request) + len(dispatches)
    say(
        f"{'Would generate' if options.dry_run else 'Generated'} {counted(plan.dispatch_count, 'dispatch')} of "
        f"{counted(len(plan.groups), 'operation')} for {plan.target.name}; left out {count}{':' if count else '.'}"
    )
    named = [*request, *plan.unused, *(dispatches if options.verbose else ())]
    lines = [f"{each.name}: {each.reason}" for each in named]
    if not options.verbose:
        if len(lines) > _MAX_NAMED:
            lines[_MAX_NAMED:] = [f"{len(lines) - _MAX_NAMED} more; --verbose lists them all"]
        lines += _counted([each.reason for each in dispatches])
    for line in lines:
        say(f"    {line}")


def _counted(reasons: Sequence[str]) -> list[str]:
    """The most frequent reasons, each with the number of dispatches that it excludes."""
    counts = Counter(reasons).most_common()
    lines = [f"{count} x {reason}" for reason, count in counts[:_MAX_REASONS]]
    if rest := counts[_MAX_REASONS:]:
        lines.append(
            f"{sum(count for _, count in rest)} x {counted(len(rest), 'other reason')}; --verbose lists them all"
        )
    return lines


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.generator.cli"))
