"""A comparison as CSV and JSON, for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dispatch_profiler.console.markup import csv_text
from dispatch_profiler.profiler.compare.pairing import FailOn, Pair, RunComparison, SideSummary
from dispatch_profiler.profiler.statistics.comparison import Ratio

#: What the JSON says of itself.
FORMAT, VERSION = "dispatch_profiler comparison", 1
_COLUMNS = (
    "dispatch", "operation", "configuration", "provider", "outcome", "ratio", "ratio_low", "ratio_high",
    "base_median(ms)", "new_median(ms)", "fails", "reason",
)  # fmt: skip


def csv_table(comparison: RunComparison, fail_on: FailOn) -> str:
    """A row for each dispatch: outcome, new time / base time with its interval, and the medians; unknown values are empty."""
    rows = []
    for pair in comparison.pairs:
        found = _fields(pair, fail_on)
        found["base_median(ms)"], found["new_median(ms)"] = (
            found.pop("base_median_ms"),
            found.pop("new_median_ms"),
        )
        rows.append({**found, **_ratio_fields(pair.ratio), "fails": "true" if found["fails"] else "false"})
    return csv_text(_COLUMNS, rows).rstrip("\n")


def json_document(comparison: RunComparison, fail_on: FailOn) -> str:
    """The sides, the rules, the geometric mean, the counts, and an object for each dispatch; null for unknown values."""
    options = comparison.options
    document = {
        "format": FORMAT,
        "version": VERSION,
        "base": _side(comparison.base),
        "new": _side(comparison.new),
        "live": comparison.live,
        "by": options.by.value,
        "threshold": options.threshold,
        "confidence": options.confidence,
        "differences": list(comparison.differences),
        "warning": comparison.unlike,
        "caveat": comparison.caveat,
        "counts": {outcome.value: count for outcome, count in comparison.counts.items()},
        "geometric_mean": _ratio_fields(comparison.mean),
        "pairs": [{**_fields(pair, fail_on), **_ratio_fields(pair.ratio)} for pair in comparison.pairs],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _fields(pair: Pair, fail_on: FailOn) -> dict[str, Any]:
    return {
        "dispatch": pair.name,
        "operation": pair.operation,
        "configuration": pair.configuration,
        "provider": pair.provider,
        "outcome": pair.outcome.value,
        "base_median_ms": _figure(pair.base_ms),
        "new_median_ms": _figure(pair.new_ms),
        "fails": fail_on.applies(pair),
        "reason": pair.reason,
    }


def _ratio_fields(ratio: Ratio | None) -> dict[str, float | None]:
    """The ratio and the ends of its interval; None for an unknown end."""
    if ratio is None:
        return {"ratio": None, "ratio_low": None, "ratio_high": None}
    low, high = ratio.low or None, ratio.high if math.isfinite(ratio.high) else None
    return {"ratio": _figure(ratio.value), "ratio_low": _figure(low), "ratio_high": _figure(high)}


def _figure(value: float | None) -> float | None:
    """Nine digits, far more than are known, so that equal records give equal files on every machine."""
    return None if value is None else float(f"{value:.9g}")


def _side(side: SideSummary) -> Mapping[str, Any]:
    return {
        "name": side.name,
        "devices": list(side.devices),
        "targets": list(side.targets),
        "software": list(side.revisions),
        "machines": [machine.text for machine in side.machines],
    }
