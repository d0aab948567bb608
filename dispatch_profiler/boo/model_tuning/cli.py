"""`dispatch-profiler tune`: a model or a workload -> a library of tuned kernels; or a library -> which entries still hold."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.boo.capture.arguments import add_input_arguments, models
from dispatch_profiler.command import FAILED, SUCCESS, Parser, run
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.tuner.commands import tune_cli
from dispatch_profiler.tuner.commands.arguments import KEPT

#: Far above any file with a model.
_LARGEST_SOURCE = 2**24


def main(arguments: Sequence[str] | None = None, *, prog: str = tune_cli.PROG) -> int:
    """Entry point; returns the exit status."""
    return run(make_parser(prog), _main, arguments, kept=KEPT)


def make_parser(prog: str = tune_cli.PROG) -> Parser:
    """The parser of this command: of workloads and libraries, with the options of models."""
    parser = tune_cli.make_parser(prog)
    add_input_arguments(parser.add_argument_group("options of models"))
    return parser


def _main(options: argparse.Namespace) -> int:
    if options.recheck is None and options.workload is not None and names_model(options.workload):
        if options.range:
            raise UsageError(
                "--range is for workloads, and a model is tuned for the sizes of its inputs",
                hint=f"dispatch-profiler capture {options.workload} -o workload.yaml, then {options.prog} workload.yaml --range=...",
            )
        return _tune_model(options)
    if options.recheck is None and options.workload is not None and options.workload.endswith(".py"):
        raise _without_name(options)
    given = [name for name, value in vars(_model_defaults()).items() if getattr(options, name) != value]
    if given:
        raise UsageError(
            f"{', '.join(f'--{name}' for name in given)}: only for models",
            hint=f"{options.prog} FILE.py:NAME --{given[0]}",
        )
    return tune_cli.tune_or_recheck(options)


def _without_name(options: argparse.Namespace) -> UsageError:
    """The error of a model's file that is given without the name of the model."""
    defined = _defined_in(Path(options.workload))
    hint = f"{options.prog} {options.workload}:{defined[0] if defined else 'NAME'}"
    more = f"; it defines {', '.join(defined)}" if len(defined) > 1 else ""
    return UsageError(
        f"{options.workload} is a Python file: a model also needs the name of a function, a class or a model in it{more}",
        hint=hint,
    )


def _defined_in(path: Path) -> list[str]:
    """The public functions and classes of a Python file, without executing it; none if it cannot be read."""
    try:
        tree = ast.parse(read_bounded(path, _LARGEST_SOURCE))
    except (SyntaxError, ValueError, UsageError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [each.name for each in tree.body if isinstance(each, kinds) and not each.name.startswith("_")]


def _model_defaults() -> argparse.Namespace:
    """The values of the options of models that are not given."""
    parser = argparse.ArgumentParser(add_help=False)
    add_input_arguments(parser)
    return parser.parse_args([])


def names_model(text: str) -> bool:
    """Whether `text` is `FILE.py:NAME` or `MODULE:NAME`, and no file."""
    place, colon, name = text.rpartition(":")
    is_place = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return bool(colon) and name.isidentifier() and is_place and not Path(text).exists()


def _tune_model(options: argparse.Namespace) -> int:
    from dispatch_profiler.boo.driver.torch_functions import load_torch
    from dispatch_profiler.boo.model_tuning.tuning import NamedModel, target_of, tune_models

    with tune_cli.confined_cores(options) as spare:
        load_torch()
        options.model = options.workload
        named = [NamedModel(*each) for each in models(options)]
        tuning = tune_cli.tune_options(options, spare, target_of(named, options.target))
        tuned = tune_models(named, tuning, training=options.training)
    return SUCCESS if tuned.is_complete else FAILED


if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.boo.model_tuning.cli"))
