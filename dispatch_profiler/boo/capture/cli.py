"""`dispatch-profiler capture`: write the operations of a PyTorch model as workload.yaml."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.driver.torch_functions import load_torch
from dispatch_profiler.command import SUCCESS, Parser, positive, run, say, warn, warn_table, writable
from dispatch_profiler.errors import DispatchProfilerError, UsageError, reason_of
from dispatch_profiler.plurals import counted

if TYPE_CHECKING:
    from dispatch_profiler.boo.capture.captured import Captured

PROG = "dispatch-profiler capture"
_TYPES = ("f32", "f16", "bf16", "f64")
_MOST_AXES = 8


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="no workload was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Run a PyTorch model once, and write the operations that the backends iree_boo and iree_boo_inductor launch "
        "for it as workload.yaml, which `dispatch-profiler tune` takes.",
    )
    parser.add_argument(
        "model", metavar="FILE.py:NAME",
        help="function or class that returns a model, or a model and its inputs; MODULE:NAME for an installed one. "
        "The file is executed",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", default="workload.yaml", metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--batch", type=_batches, default=(None,), metavar="N[,N]",
        help="batches: passed as `batch` to a function that has this parameter, otherwise the first axis of all inputs",
    )  # fmt: skip
    parser.add_argument(
        "--dtype",
        choices=_TYPES,
        help="type of the parameters and of inputs with fractions (default: as they are)",
    )
    parser.add_argument(
        "--input", action="append", type=_shape, default=[], metavar="1x3x224x224",
        help="shape of a random f32 input, several times for several (default: those that NAME returns)",
    )  # fmt: skip
    parser.add_argument(
        "--training", action="store_true",
        help="in training mode and with gradients, whose operations count if BOO_USE_BACKWARD_KERNELS=1",
    )  # fmt: skip
    parser.add_argument(
        "--matrix-products", action="store_true",
        help="also matrix products, as with the schema BOO_FUSIONS_WITH_MATRIX_PRODUCTS",
    )  # fmt: skip
    return parser


def _batches(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(each) for each in text.split(",")))


def _shape(text: str) -> tuple[int, ...]:
    extents = text.split("x")
    if len(extents) > _MOST_AXES or not all(
        each.isascii() and each.isdigit() and int(each) for each in extents
    ):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no shape such as 1x3x224x224")
    return tuple(map(int, extents))


def _main(options: argparse.Namespace) -> int:
    load_torch()
    path = writable("--output", options.output)
    from dispatch_profiler.boo.capture.models import load_factory

    factory = load_factory(options.model)
    found = [_captured(options, factory, batch) for batch in options.batch]
    _write(found, path, options.model)
    _list_left(found)
    return SUCCESS


def _captured(options: argparse.Namespace, factory: Any, batch: int | None) -> Captured:
    from dispatch_profiler.boo.capture.captured import capture
    from dispatch_profiler.boo.capture.models import ModelRequest, build_model
    from dispatch_profiler.boo.fusion import schema

    request = ModelRequest(batch, options.dtype, options.training, tuple(options.input))
    model, inputs = build_model(factory, request)
    name = options.model if batch is None else f"{options.model}, batch {batch}"
    products = schema.BOO_FUSIONS_WITH_MATRIX_PRODUCTS
    rules = products if options.matrix_products else schema.DEFAULT_SUPPORTED_BOO_FUSIONS
    try:
        return capture(model, inputs, training=options.training, fusion_schema=rules, origin=name)
    except DispatchProfilerError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name} failed: {type(error).__name__}: {reason_of(error)}",
            hint="check that the model runs with these inputs in eager torch",
        ) from error


def _write(found: Sequence[Captured], path: Path, name: str) -> None:
    from dispatch_profiler.workloads import write_workload
    from dispatch_profiler.workloads._base import merged

    workload = merged([entry for each in found for entry in each.workload.entries])
    if not workload.entries:
        _list_left(found)
        raise UsageError(
            f"{name} has no operation that a kernel of this package computes",
            hint="with --matrix-products, linear layers count",
        )
    write_workload(workload, path)
    runs = sum(entry.count for entry in workload.entries)
    say(f"Wrote {counted(len(workload.entries), 'operation')} with {counted(runs, 'launch')} to {path}")


def _list_left(found: Sequence[Captured]) -> None:
    """What torch computes, and why, on standard error."""
    left: Counter[tuple[str, str]] = Counter()
    for each in found:
        left.update({(of.root, of.reason): of.count for of in each.left_to_torch})
    if left:
        warn("Left to torch:")
        warn_table([(f"{count} {root}", reason) for (root, reason), count in left.items()])
