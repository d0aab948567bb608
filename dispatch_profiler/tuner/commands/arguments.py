"""Arguments that several commands of the tuner share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.command import Parser, folder, positive, positive_number, say, user_cache, warn
from dispatch_profiler.compiler import Cache
from dispatch_profiler.compiler.workers.cluster import add_tls_arguments, cluster_at, tls_files
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.library import KeepRule, Library, find_library
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.devices import parse_devices, unlike
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.runtime import DeviceUri, all_devices
from dispatch_profiler.targets import DEFAULT_TARGET, FAMILIES, Target, parse_target
from dispatch_profiler.tuner.evaluation.building import BuildOptions
from dispatch_profiler.tuner.search.search import SEARCH_MEASURE, SEARCH_STOP, SearchOptions
from dispatch_profiler.tuner.strategies import STRATEGIES
from dispatch_profiler.tuner.tunings.time_limit import allotted
from dispatch_profiler.tuner.tunings.tuning_file import Tuning

#: Families whose architectures may be named alone.
_NAMED_ALONE = ("rocm", "cuda", "llvm-cpu")


def add_architecture_argument(parser: Parser) -> None:
    """Add `--target`, which `parse_architecture` reads."""
    parser.add_argument(
        "-a", "--target", "--architecture", default=DEFAULT_TARGET, metavar="NAME",
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
    """Parse a number from 0 to 100, for argparse: `3` and `3%`."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 100.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 100, but got {text!r}")
    return value


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Parse a time in seconds, for argparse: `90`, `90s`, `1.5m` or `1h`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smh]?)", text.strip())
    if found is None or not 0.0 < (seconds := float(found[1]) * _UNITS[found[2]]) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 5m or 1h, but got {text[:80]!r}")
    return seconds


# -- searches --------------------------------------------------------------------------------------

# The options of searches, which `optimize` and `tune` share.


#: Files of a search in the folder of the tuning files: its storage, and the records of everything it evaluated.
STORAGE_FILE, RECORDS_FILE = "search.db", "search.jsonl"
#: The state after Ctrl-C.
KEPT = "what was measured is kept, and the same command continues from there"


@dataclass(frozen=True)
class StepOptions:
    """How to search, and what to keep.

    `storage` is a file or a URL, empty for the usual file. Winners of `library` for similar shapes are tried first.
    """

    search: SearchOptions
    storage: str = ""
    library: Library | None = None
    rule: KeepRule = KeepRule()

    @property
    def benchmark_build(self) -> BuildOptions:
        """How the benchmark compiles: on all cores, because nothing is measured meanwhile."""
        build, spare = self.search.build, self.search.spare_cores
        return replace(build, cores=(*usable_cores(), *spare)) if spare else build

    def benchmark_evaluator(self, device: str) -> EvaluatorOptions:
        """How the benchmark measures on `device`: every kernel until its lowest decile is known, but briefly.

        The speedups are those of paired sampling.
        """
        stop = StopRule(SEARCH_STOP.width, SEARCH_STOP.seconds / 2.0, abandon=math.inf, by_decile=True)
        return replace(self.search.evaluator, device=device, measure=replace(SEARCH_MEASURE, stop=stop))


def add_search_arguments(parser: Parser, *, usual: str, usual_time: str = "no limit") -> None:
    """Add the options that `step_options` and `tuning_changes` read; `usual` and `usual_time` say what applies without them."""
    parser.add_argument("--strategy", choices=list(STRATEGIES), help=f"how to search (default: {usual})")
    parser.add_argument("--seed", type=_seed, metavar="N", help=f"seed of the strategy (default: {usual})")
    parser.add_argument(
        "--evaluations", type=positive, metavar="N",
        help=f"configurations to evaluate for each problem (default: {usual})",
    )  # fmt: skip
    parser.add_argument(
        "--time", type=duration, metavar="TIME",
        help="end all searches after this time, such as 90s or 5m; problems with more work have more evaluations "
        f"(default: {usual_time})",
    )  # fmt: skip
    parser.add_argument(
        "--budget", "--time-budget", type=positive_number, metavar="SECONDS",
        help=f"end the search for a problem after this time (default: {usual})",
    )  # fmt: skip
    parser.add_argument(
        "--least-gain", type=percent, metavar="PERCENT",
        help=f"end the search for a problem when less than this more is expected (default: {usual})",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=percent, default=0.0, metavar="PERCENT",
        help="keep winners that are faster by more than this, with their whole interval (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--packed-weights",
        action="store_true",
        help="weights are constants: also search for configurations that pack them at load time (docs/tuning.md)",
    )
    parser.add_argument(
        "--storage", metavar="FILE|URL",
        help="where evaluations are kept: FILE.db, FILE.log or the URL of a database "
        "(default: search.db beside the tuning files)",
    )  # fmt: skip
    parser.add_argument(
        "--library", metavar="DIR", help="a library whose winners of similar shapes are tried first"
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N",
        help="tune for kernels with N threads: measure on N physical cores, and compile on the others (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "-j", "--jobs", "--num-cpu", type=positive, metavar="N", help="concurrent builds (default: all CPUs)"
    )
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help="time limit for a step of one candidate (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--cluster", metavar="ADDRESS",
        help="tcp://HOST:PORT or tls://HOST:PORT of a Dask scheduler, whose workers compile, and measure if they have "
        "devices (docs/tuning.md)",
    )  # fmt: skip
    add_tls_arguments(parser)


def named_devices(names: str | None, usual: str, option: str = "--devices") -> tuple[str, ...]:
    """The devices that `option` names: `all`, or URIs and numbers for the driver of `usual`; empty without names.

    Warns if devices differ. Raises UsageError and TargetError.
    """
    if not names:
        return ()
    devices = all_devices(usual) if names == "all" else parse_devices(names, usual, option)
    if warning := unlike(devices):
        warn(warning)
    return devices


def own_device(devices: Sequence[str], usual: str) -> str:
    """The first of `devices` that is on this machine; `usual` if all are elsewhere."""
    return next((each for each in devices if not DeviceUri.parse(each).is_remote), usual)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:11]) < 2**32):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {2**32 - 1}, but got {text!r}")
    return int(text)


def step_options(
    options: argparse.Namespace, devices: tuple[str, ...] = (), spare_cores: tuple[int, ...] = ()
) -> StepOptions:
    """The options of the steps, from arguments. Raises UsageError, also if the library cannot be read.

    Nothing is measured on `spare_cores`.
    """
    cache, tls = user_cache(), tls_files(options)
    if tls is not None and options.cluster is None:
        raise UsageError("--tls-ca-file needs --cluster", hint="add --cluster=tls://HOST:PORT")
    search = SearchOptions(
        EvaluatorOptions("", measure=SEARCH_MEASURE, seconds=options.timeout, peaks=cache / "machines"),
        BuildOptions(workers=options.jobs, seconds=options.timeout),
        Cache(cache),
        devices,
        spare_cores=spare_cores,
        seconds=options.time,
        cluster=cluster_at("--cluster", options.cluster, tls) if options.cluster is not None else None,
    )
    library = Library.load(find_library(folder(options.library))) if options.library else None
    return StepOptions(search, options.storage or "", library, KeepRule(options.threshold / 100.0))


def within_time(tunings: Sequence[Tuning], steps: StepOptions) -> tuple[Tuning, ...]:
    """The tunings that fit into the time of the search, with as many evaluations; says which do not. All without a limit."""
    if steps.search.seconds is None:
        return tuple(tunings)
    fitting = allotted(tunings, steps.search.seconds, len(usable_cores()) + len(steps.search.spare_cores))
    if fitting.left_out:
        say(
            f"The time is too short for {counted(len(fitting.left_out), 'problem')} of {len(tunings)}: those with the least "
            "work are not tuned; a longer --time continues with them"
        )
    return fitting.tunings


def tuning_changes(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of a `Tuning` -> their values by options, which replace the values in its file."""
    given = {
        "strategy": options.strategy,
        "seed": options.seed,
        "evaluations": options.evaluations,
        "seconds": options.budget,
        "packed_weights": options.packed_weights or None,
        "least_gain": options.least_gain,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if options.budget is not None and options.evaluations is None:
        fields["evaluations"] = None
    return fields
