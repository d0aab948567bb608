"""`dispatch-profiler capture`: write the operations of a PyTorch model as workload.yaml."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dispatch_profiler import startup
from dispatch_profiler.boo.capture.arguments import add_model_arguments, models, reported_as, schema_of
from dispatch_profiler.boo.driver.torch_functions import load_torch
from dispatch_profiler.command import SUCCESS, Parser, run, say, warn, warn_table, writable
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError

if TYPE_CHECKING:
    from dispatch_profiler.boo.capture.capturing import Captured

PROG = "dispatch-profiler capture"


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="no workload was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Run a PyTorch model once, and write the operations that the backends iree_boo and iree_boo_inductor launch "
        "for it to workload.yaml, for `dispatch-profiler tune`.",
        HelpPage(
            examples=(f"{prog} model.py:make_model", f"{prog} model.py:make_model --batch=1,8 -o work.yaml")
        ),
    )
    add_model_arguments(parser)
    parser.add_argument(
        "-o", "--output", default="workload.yaml", metavar="FILE", help="the workload (default: %(default)s)"
    )
    return parser


def _main(options: argparse.Namespace) -> int:
    load_torch()
    path = writable("--output", options.output)
    from dispatch_profiler.boo.capture.capturing import capture
    from dispatch_profiler.workloads import write_workload
    from dispatch_profiler.workloads.workload_file import merged

    captured: list[Captured] = []
    for name, model, inputs in models(options):
        with reported_as(name, model, inputs):
            captured.append(
                capture(
                    model, inputs, training=options.training, fusion_schema=schema_of(options), origin=name
                )
            )
    workload = merged([entry for each in captured for entry in each.workload.entries])
    if workload.entries:
        write_workload(workload, path)
        runs = sum(entry.count for entry in workload.entries)
        say(f"Wrote {counted(len(workload.entries), 'operation')} with {counted(runs, 'launch')} to {path}")
    _list_left(captured)
    if not workload.entries:
        raise UsageError(
            f"{options.model} has no operation that a kernel of this package computes",
            hint="--matrix-products includes linear layers",
        )
    return SUCCESS


def _list_left(captured: Sequence[Captured]) -> None:
    """List the operators that torch computes, and why, on standard error."""
    left: Counter[tuple[str, str]] = Counter()
    for each in captured:
        left.update({(of.root, of.reason): of.count for of in each.left_to_torch})
    if left:
        warn("Left to torch:")
        warn_table([(f"{count} {root}", reason) for (root, reason), count in left.items()])


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.capture.cli"))
