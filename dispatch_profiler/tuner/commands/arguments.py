"""Arguments that several commands of the tuner share."""

from __future__ import annotations

import argparse
import math

from dispatch_profiler.command import Parser, say
from dispatch_profiler.errors import TargetError
from dispatch_profiler.targets import DEFAULT_TARGET, FAMILIES, Target, parse_target

#: Families whose architectures may be named alone.
_NAMED_ALONE = ("rocm", "cuda", "llvm-cpu")


def add_architecture_argument(parser: Parser) -> None:
    """Add `--architecture`, which `parse_architecture` reads."""
    parser.add_argument(
        "-a", "--architecture", "--target", default=DEFAULT_TARGET, metavar="NAME",
        help="an architecture such as gfx950, sm_90 or znver4, or a target such as rocm:gfx950 (default: %(default)s)",
    )  # fmt: skip


def add_hipblaslt_argument(parser: Parser) -> None:
    """Add the path of hipBLASLt that hipBLASLt's own workflow has as its first argument; `note_hipblaslt` reads it.

    `parser` must be `intermixed`, because another positional argument follows.
    """
    parser.add_argument(
        "hipblaslt_path", nargs="?", metavar="HIPBLASLT_PATH",
        help="accepted for compatibility with hipBLASLt's tuning workflow, and ignored",
    )  # fmt: skip


def note_hipblaslt(options: argparse.Namespace) -> None:
    """Say that the path of hipBLASLt is not needed, if it was given."""
    if options.hipblaslt_path:
        say(f"{options.hipblaslt_path} is not needed: IREE compiles the kernels, not hipBLASLt")


def parse_architecture(text: str) -> Target:
    """The target of an architecture or of a target's name: `gfx950` -> `rocm:gfx950`, `sm_90` -> `cuda:sm_90`.

    Raises TargetError.
    """
    if text.partition(":")[0] in FAMILIES:
        return parse_target(text)
    for family in _NAMED_ALONE:
        try:
            return FAMILIES[family].parse(text)
        except TargetError:
            continue
    raise TargetError(
        f"unknown architecture {text[:100]!r}",
        hint=f"write FAMILY:ARCHITECTURE with one of {', '.join(FAMILIES)}; docs/targets.md lists architectures",
    )


def percent(text: str) -> float:
    """Parse a number from 0 to 100, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 100.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 100, but got {text!r}")
    return value
