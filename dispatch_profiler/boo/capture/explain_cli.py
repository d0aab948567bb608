"""`dispatch-profiler explain`: how a backend of torch.compile computes a PyTorch model, region by region."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from dispatch_profiler import startup
from dispatch_profiler.boo.capture.arguments import add_model_arguments, models, reported_as, schema_of
from dispatch_profiler.boo.driver.torch_functions import load_torch
from dispatch_profiler.command import SUCCESS, Parser, run, show
from dispatch_profiler.console.options import HelpPage

PROG = "dispatch-profiler explain"
#: The options that --help shows.
_COMMON = (
    "--full",
    "--batch",
    "--dtype",
    "--input",
    "--backend",
    "--freeze",
    "--autotune",
)
#: Name of a backend -> its nested backend, which computes everything outside regions.
_BACKENDS = {"iree_boo": None, "iree_boo_inductor": "inductor"}


def main(arguments: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept="compiled kernels stay in the launch cache")


def make_parser(prog: str = PROG) -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog,
        "List the kernels of a PyTorch model, those first that tuning is expected to make faster: the share of the time, "
        "where the kernel comes from, and the operation; or why torch computes it. Kernels that the launch cache lacks are "
        "compiled.",
        HelpPage(_COMMON, (f"{prog} model.py:make_model", f"{prog} model.py:make_model --batch=8 --full")),
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--backend", choices=list(_BACKENDS), default="iree_boo",
        help="the backend of torch.compile (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--freeze", action="store_true",
        help="like options={'freeze': True}: parameters do not change (default: BOO_FREEZE)",
    )  # fmt: skip
    parser.add_argument(
        "--autotune", action="store_true",
        help="like options={'autotune': True}: also measure several ways to compute each graph, and list the regions of "
        "the fastest (default: like 'quick', or BOO_AUTOTUNE)",
    )  # fmt: skip
    parser.add_argument(
        "--no-measure", action="store_true", help="compile the kernels, but do not measure regions"
    )
    parser.add_argument(
        "--full", action="store_true",
        help="all that is known about each region in the order of the model: its nodes, the exact operation and "
        "configuration, what it was chosen from, and the effect of freezing",
    )  # fmt: skip
    return parser


def _main(options: argparse.Namespace) -> int:
    load_torch()
    for name, model, inputs in models(options):
        with reported_as(name, model, inputs):
            text = explained(options, model, inputs)
        show(f"{name}\n{text}")
    return SUCCESS


def explained(options: argparse.Namespace, model: Any, inputs: Any) -> str:
    """What the command prints about `model`."""
    import torch

    from dispatch_profiler.boo.backends import backend, explain
    from dispatch_profiler.boo.backends.measuring import in_turns
    from dispatch_profiler.boo.capture.explanation_lines import lines_of

    # Without --autotune, the default of torch.compile: kernels are chosen, and slower regions and graphs left to torch.
    chosen = backend(
        _BACKENDS[options.backend],
        schema_of(options),
        autotune=options.autotune or None,
        freeze=options.freeze or None,
    )
    measure = None if options.no_measure else in_turns
    with torch.set_grad_enabled(options.training):
        found = explain(model, inputs, backend=chosen, measure=measure)
    return str(found) if options.full else "\n".join(lines_of(found))


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.capture.explain_cli"))
