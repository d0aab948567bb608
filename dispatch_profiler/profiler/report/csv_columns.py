"""The columns of the CSV of a run, and the values of a record in them; rows are derived from the JSON lines beside the CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dispatch_profiler.command import Parser
from dispatch_profiler.configurations import Default, report_columns
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.operations import KINDS as OPERATION_KINDS
from dispatch_profiler.profiler.measurement.measure import included_text, interval_texts
from dispatch_profiler.profiler.records.record import Confirmation, StoredRecord, arguments_text
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE, Speedup, SpeedupsOfRuns
from dispatch_profiler.profiler.statistics.comparison import Ratio

MAIN = (
    "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
    "Verification", "Runtime(ms)", "GFLOPs",
)  # fmt: skip
#: State of the GPU after the last sample.
_GPU = ("sm_mhz", "memory_mhz", "watts", "celsius")
_MEASURED = (
    "min(ms)", "p20(ms)", "p80(ms)", "max(ms)", "low(ms)", "high(ms)", "spread", "samples",
    "executions_per_sample", "mode", "includes", "overhead(ms)", "eager(ms)", "library_call(ms)", "ended_by", "warnings", "limit(ms)", *_GPU,
)  # fmt: skip
_SPEEDUP = (
    "vs_default", "vs_default_low", "vs_default_high", "vs_reference", "vs_reference_low", "vs_reference_high",
    "reference", "of_limit", "confirmed", "confirmed_speed", "confirmed_low", "confirmed_high",
)  # fmt: skip
_ORIGIN = (
    "gpu", "driver", "cpu", "cores", "memory_bytes", "system", "device", "target", "iree", "library", "seed", "when",
    "flags", "module_key", "reason", "reproduce",
)  # fmt: skip


#: Columns of numbers with a fraction; of text, also where it consists of digits; others are counts, or as their values are.
FLOATS = frozenset((
    *(name for name in (*MAIN, *_MEASURED) if name.endswith("(ms)")), "GFLOPs", "spread", "watts",
    *(name for name in _SPEEDUP if name not in ("reference", "confirmed")),
))  # fmt: skip
TEXTS = frozenset((
    *(name for name in MAIN if name not in ("Runtime(ms)", "GFLOPs")), "lhs", "rhs", "result", "mode", "includes",
    "ended_by", "warnings", "reference", "confirmed", "gpu", "driver", "cpu", "system", "device", "target", "iree",
    "library", "flags", "module_key", "reason", "reproduce",
))  # fmt: skip
#: The columns without `--columns`: those of the IREE dispatch profiler, the interval, speedups, and what is needed to
#: tell rows apart or to see that something is wrong.
_USUAL = frozenset((
    *MAIN, "bytes", "flops", "batch_count", "m", "n", "k", "lhs", "rhs", "result", "split_k_mode", "split_k_slices",
    "core", "instruction", "low(ms)", "high(ms)", "spread", "samples", "warnings", "vs_default", "vs_reference",
    "reference", "of_limit", "confirmed", "confirmed_speed", "device", "target", "reason",
))  # fmt: skip
#: The most characters of a first line that are read.
_MOST_HEADER = 1 << 16


def columns() -> tuple[str, ...]:
    """All columns after the tags; the same for every run, so that runs can be appended."""
    samples = [kind.smallest() for kind in OPERATION_KINDS.values()]
    arguments = dict.fromkeys(
        name
        for operation in samples
        for name in (*Dispatch(operation, Default()).arguments(), *operation.argument_names())
    )
    return (*MAIN, "bytes", "flops", *arguments, *report_columns(), *_MEASURED, *_SPEEDUP, *_ORIGIN)


def usual_columns() -> tuple[str, ...]:
    """The columns that are written unless the user names others; the same for every run."""
    return tuple(name for name in columns() if name in _USUAL)


def add_columns_argument(parser: Parser) -> None:
    """Add `--columns`, which `chosen_columns` reads."""
    parser.add_argument(
        "--columns", metavar="NAME,...|all",
        help="columns of the CSV, in this order; all: every column; default,NAME: one more than usual (default: "
        f"default, which is {len(usual_columns())} of {len(columns())})",
    )  # fmt: skip


def chosen_columns(text: str | None) -> tuple[str, ...]:
    """The columns that the value of `--columns` names; the usual ones for None. Raises UsageError for unknown names."""
    known, names = columns(), list[str]()
    for name in map(str.strip, (text or "default").split(",")):
        if name == "all":
            names += known
        elif name == "default":
            names += usual_columns()
        elif name in known:
            names.append(name)
        else:
            hint = did_you_mean(name, (*known, "all", "default")).split("? Available")[0]
            raise UsageError(
                f"--columns: unknown column {name!r}", hint=f"{hint}?" if hint.startswith("did") else hint
            )
    return tuple(dict.fromkeys(names))


def header_of(path: Path) -> tuple[str, ...]:
    """The names in the first line of a file; empty if there is no such file."""
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", errors="replace") as file:
        return tuple(next(csv.reader([file.readline(_MOST_HEADER)]), []))


def kept_columns(path: Path, earlier: Sequence[StoredRecord]) -> tuple[str, ...]:
    """The columns of a file that has the `earlier` records; the usual ones if it has others than this version or no file."""
    known, tags = columns(), {name for record in earlier for name in record.tags}
    header = header_of(path)
    kept = tuple(name for name in header if name in known)
    return kept if kept and all(name in known or name in tags for name in header) else usual_columns()


def row(record: StoredRecord) -> dict[str, Any]:
    """A record as CSV values; missing values are empty."""
    measurement = record.measurement
    low, high = ("", "") if measurement is None else interval_texts(measurement)
    measured = {} if measurement is None else {
        "Runtime(ms)": repr(measurement.median_ms),
        "GFLOPs": repr(measurement.gflops(record.flops)),
        "min(ms)": repr(measurement.min_ms),
        "p20(ms)": repr(measurement.p20_ms),
        "p80(ms)": repr(measurement.p80_ms),
        "max(ms)": repr(measurement.max_ms),
        "low(ms)": low,
        "high(ms)": high,
        "spread": repr(measurement.spread) if measurement.has_interval else "",
        "samples": len(measurement.samples_ms),
        "executions_per_sample": measurement.executions,
        "mode": measurement.mode,
        "includes": included_text(measurement.includes),
        "overhead(ms)": repr(measurement.overhead_ms),
        "eager(ms)": repr(measurement.eager_ms) if measurement.eager_ms else "",
        "library_call(ms)": repr(measurement.library_call_ms) if measurement.library_call_ms else "",
        "ended_by": measurement.ended_by,
        "limit(ms)": repr(record.limit_ms) if record.limit_ms else "",
        "warnings": "; ".join(measurement.warnings),
        **{name: getattr(measurement.gpu, name, "") for name in _GPU},
    }  # fmt: skip
    return {
        "Dispatch": record.dispatch,
        "Provider": record.provider,
        "OpKind": record.op_kind,
        "Operation": record.operation,
        "Configuration": record.configuration,
        "Arguments": arguments_text(record.arguments),
        "Verification": record.verdict.value,
        "bytes": record.bytes,
        "flops": record.flops,
        **record.arguments,
        **record.configuration_fields,
        **measured,
        **{name: value or "" for name, value in asdict(record.provenance.machine).items()},
        "device": record.provenance.device,
        "target": record.provenance.target,
        "iree": record.provenance.iree,
        "library": record.provenance.library,
        "seed": record.provenance.seed,
        "when": record.provenance.when,
        **_confirmed_columns(record.confirmed),
        "flags": " ".join(record.provenance.flags),
        "module_key": record.provenance.module_key,
        "reason": record.reason,
        "reproduce": record.reproduce,
    }


def _speedup_columns(speedup: Speedup, reference: str) -> dict[str, Any]:
    return {
        **_ratio_columns("vs_default", speedup.vs_default),
        **_ratio_columns("vs_reference", speedup.vs_reference),
        "reference": reference,
        "of_limit": "" if speedup.of_limit is None else repr(speedup.of_limit),
    }


def _confirmed_columns(confirmation: Confirmation | None) -> dict[str, str]:
    if confirmation is None:
        return {}
    figures = {
        "confirmed_speed": confirmation.speed,
        "confirmed_low": confirmation.low,
        "confirmed_high": confirmation.high,
    }
    return {
        "confirmed": confirmation.outcome,
        **{name: repr(value) for name, value in figures.items() if value},
    }


def _ratio_columns(name: str, ratio: Ratio | None) -> dict[str, str]:
    """A ratio and the ends of its interval; unknown values are omitted."""
    if ratio is None:
        return {}
    ends = {f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return {
        name: repr(ratio.value),
        **{end: repr(value) for end, value in ends.items() if 0 < value < math.inf},
    }


def csv_rows(records: Sequence[StoredRecord], reference: str = DEFAULT_REFERENCE) -> list[dict[str, Any]]:
    """The values of every column and tag of `records`, with speedups relative to `reference` and to the default."""
    speedups = SpeedupsOfRuns(reference, records)
    return [csv_row(record, speedup, speedups.reference) for record, speedup in speedups.all()]


def csv_row(record: StoredRecord, speedup: Speedup, reference: str) -> dict[str, Any]:
    """The values of every column and tag of one record."""
    return {**record.tags, **row(record), **_speedup_columns(speedup, reference)}
