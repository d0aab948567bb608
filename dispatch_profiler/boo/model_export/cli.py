"""`dispatch-profiler export`: write a PyTorch model as a package of AOTInductor with our kernels, for C++."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_profiler import startup
from dispatch_profiler.boo.capture.arguments import add_model_arguments, models, reported_as, schema_of
from dispatch_profiler.boo.driver.torch_functions import load_torch
from dispatch_profiler.command import SUCCESS, Parser, run, say, show, warn, warn_table
from dispatch_profiler.console.options import HelpPage
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError

if TYPE_CHECKING:
    from dispatch_profiler.boo.model_export.exporting import ExportedModel

PROG = "dispatch-profiler export"
_COMMON = ("--output", "--batch", "--dtype", "--input", "--matrix-products", "--no-measure")


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="no package was written")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "Write a PyTorch model as a package of AOTInductor, model.pt2, whose convolutions, normalizations and products "
        "are kernels of this package, with an example in C++ that runs it.",
        HelpPage(
            _COMMON,
            (f"{prog} model.py:make_model -o exported", f"{prog} model.py:make_model --batch=8 -o exported"),
        ),
    )
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder; it need not exist")
    parser.add_argument(
        "--no-measure", action="store_true",
        help="use kernels wherever there are any, and do not compare the package with one that has none",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    load_torch()
    from dispatch_profiler.boo.model_export.exporting import export_model

    if options.training or len(options.batch) > 1:
        name = "--training" if options.training else "--batch"
        raise UsageError(f"{name}: a package is for inference, with one batch size")
    ((name, model, inputs),) = models(options)
    with reported_as(name, model, inputs):
        exported = export_model(
            model,
            inputs,
            Path(options.output),
            measure=not options.no_measure,
            fusion_schema=schema_of(options),
            say=lambda line: say(f"{name}: {line}"),
        )
    _report(exported)
    return SUCCESS


def _report(exported: ExportedModel) -> None:
    """The kernels on standard output; what AOTInductor computes, and why, on standard error."""
    for kernel, configuration in exported.kernels:
        show(f"{kernel}  {configuration}")
    left = Counter(exported.left_to_torch)
    if left:
        warn("Left to AOTInductor:")
        warn_table([(f"{count} {root}", reason) for (root, reason), count in left.items()])
    time = exported.relative_time
    if time is not None:
        kept = "" if time < 1 else ": the package has none"
        say(f"With kernels, a call takes {time:.2f} of the time without{kept}")
    say(f"Wrote {exported.package} with {counted(len(exported.kernels), 'kernel')}")


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.model_export.cli"))
