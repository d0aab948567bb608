"""The results of a tuning: raw_results.csv, final_results.csv, metrics.json, and the printed summary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.tuner.results.uplift import Interval, Judged, Judgement, Uplift, uplift
from dispatch_profiler.tuner.tunings.problems import TIME, UNITS

#: Every problem with all its finalists, and the finalists that are kept.
RAW_FILE, FINAL_FILE = "raw_results.csv", "final_results.csv"
METRICS_FILE = "metrics.json"
METRICS_VERSION = 1
_COLUMNS = (
    "problem", "operation", "count", "share(%)", "judgement", "reason", "verification",
    "reference(ms)", "reference_low(ms)", "reference_high(ms)", "tuned(ms)", "tuned_low(ms)", "tuned_high(ms)",
    "speedup", "speedup_low", "speedup_high", "uplift(%)", "saved_share(%)",
    "reference_configuration", "tuned_configuration", "origin",
)  # fmt: skip


#: The subject of each uplift.
DEFINITIONS = {
    "average_uplift": "arithmetic mean of the uplifts of kept problems, which one large uplift dominates",
    "geometric_mean_uplift": "geometric mean of the speedups of kept problems, less 1, which one large uplift affects less",
    "weighted_uplift": "of the whole workload, in which problems that are not kept stay as fast as they are",
}


def write_results(folder: Path, judged: Sequence[Judged], settings: Mapping[str, Any]) -> Uplift:
    """Write the three files to `folder`, each atomically; returns the uplift. `settings` are part of the metrics."""
    total = uplift(judged)
    every = [row for each in judged for row in (each, *each.others)]
    write_atomic(folder / RAW_FILE, results_text(every))
    write_atomic(folder / FINAL_FILE, results_text([each for each in judged if each.is_kept]))
    write_atomic(folder / METRICS_FILE, metrics_text(judged, total, settings))
    return total


def results_text(judged: Sequence[Judged]) -> str:
    """A CSV with a line for each finalist, in order; unknown values are empty."""
    return csv_text(_COLUMNS, map(_row, judged))


def _row(judged: Judged) -> dict[str, object]:
    finalist = judged.finalist
    problem, speedup, tuned = finalist.problem, finalist.speedup, finalist.tuned
    speeds = {} if speedup is None else {
        "speedup": _number(speedup.value), "speedup_low": _number(speedup.low),
        "speedup_high": _number(speedup.high), "uplift(%)": _number(100.0 * (speedup.value - 1.0)),
    }  # fmt: skip
    saved = None if finalist.share is None else finalist.share * (1.0 - 1.0 / judged.kept_speedup.value)
    return {
        "problem": problem.name,
        "operation": problem.operation.name,
        "count": problem.count,
        "share(%)": _number(finalist.share),
        "judgement": judged.judgement.value,
        "reason": judged.reason,
        "verification": "" if tuned is None else tuned.verdict.value,
        **_times("reference", finalist.default),
        **_times("tuned", tuned),
        **speeds,
        "saved_share(%)": _number(saved),
        "reference_configuration": "" if finalist.default is None else finalist.default.configuration,
        "tuned_configuration": "" if tuned is None else tuned.configuration,
        "origin": problem.origin,
    }


def _times(side: str, record: StoredRecord | None) -> dict[str, str]:
    """Median and interval; a wrong kernel has no time."""
    if record is None or record.measurement is None or record.is_failure:
        return {}
    low, high = record.measurement.interval_ms
    values = (record.measurement.median_ms, low, high)
    names = (f"{side}(ms)", f"{side}_low(ms)", f"{side}_high(ms)")
    return {name: _number(value) for name, value in zip(names, values, strict=True)}


def _number(value: float | None) -> str:
    """All digits; empty for a number that is unknown."""
    return repr(value) if value is not None and math.isfinite(value) else ""


def line_of(judged: Judged) -> str:
    """`BBS_TN_0: kept: tile_config_64x128, 1.52 times as fast (1.48-1.56)`"""
    finalist = judged.finalist
    name = f"{finalist.problem.name}: {judged.judgement.value}"
    configuration = f": {finalist.tuned.configuration}" if finalist.tuned is not None else ""
    if judged.is_kept:
        speedup = judged.kept_speedup
        more = f"; {judged.reason}" if judged.reason else ""
        return f"{name}{configuration}, {speedup.value:.2f} times as fast ({speedup.low:.2f}-{speedup.high:.2f}){more}"
    return f"{name}{configuration}: {judged.reason}"


# -- metrics ---------------------------------------------------------------------------------------


def metrics_text(judged: Sequence[Judged], total: Uplift, settings: Mapping[str, Any]) -> str:
    """The metrics as JSON. Figures are in percent; unknown figures and ends of intervals are `null`."""
    counts = {each.value: sum(j.judgement is each for j in judged) for each in Judgement}
    data = {
        "format": "dispatch_profiler metrics",
        "version": METRICS_VERSION,
        "settings": dict(settings),
        "problems": len(judged),
        "judgements": {name: count for name, count in counts.items() if count},
        "definitions": DEFINITIONS,
        "average_uplift": _interval(total.average),
        "geometric_mean_uplift": _interval(total.geometric),
        "weighted_uplift": _interval(total.weighted),
        "coverage": {"attempted": total.attempted, "improved": total.improved},
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


def uplift_lines(total: Uplift, weighed_by: str = TIME) -> tuple[str, ...]:
    """The lines to print: average uplift, geometric mean, and the weighted uplift if shares are known.

    `weighed_by`: `time` or `flops`.
    """
    if total.average is None or total.geometric is None:
        lines = ["Average GEMM uplift: none, because no finalist is kept"]
    else:
        lines = [
            f"Average GEMM uplift: {_text(total.average)}, the arithmetic mean of {counted(total.kept, 'kept problem')}",
            f"Geometric mean uplift: {_text(total.geometric)}, which one large uplift affects less",
        ]
    if total.weighted is not None:
        lines.append(
            f"Weighted total uplift: {_text(total.weighted)}; the kept problems are {total.improved:.1f} % of the "
            f"{UNITS[weighed_by]}, all tuned problems {total.attempted:.1f} %"
        )
    return tuple(lines)


def _text(interval: Interval) -> str:
    """`12.3 % (10.1 to 14.2 %)`"""
    low, high = (f"{each:.1f}" if math.isfinite(each) else "?" for each in (interval.low, interval.high))
    return f"{interval.value:.1f} % ({low} to {high} %)"
