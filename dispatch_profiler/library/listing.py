"""Entries of a library as text: a table, one entry in full, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Iterable, Sequence

from dispatch_profiler.library.entry import NO_SPEED, Entry, Estimate
from dispatch_profiler.library.library_json import exported
from dispatch_profiler.profiler.records.speedup import speedup_text
from dispatch_profiler.profiler.statistics.comparison import Ratio

HEADER = ("operation", "configuration", "GFLOP/s", "vs untuned")
_COLUMNS = (
    "operation", "kind", "arguments", "configuration", "configuration_fields", "gflops", "gflops_low",
    "gflops_high", "speedup", "speedup_low", "speedup_high", "target", "iree", "device", "cpu", "cores", "gpu",
    "driver", "system", "when", "flags", "module_key",
)  # fmt: skip


def table_rows(entries: Iterable[Entry]) -> list[Sequence[str]]:
    """The header and a row for each entry."""
    rows = [
        (each.operation.name, each.dispatch.configuration.name, _gflops(each), _speedup(each))
        for each in entries
    ]
    return [HEADER, *rows]


def shown_rows(entry: Entry) -> list[Sequence[str]]:
    """Name and value of everything that is known of an entry."""
    origin = entry.provenance
    rows = [
        ("operation", entry.operation.name),
        ("configuration", entry.dispatch.configuration.name),
        *((f"  {name}", value) for name, value in entry.dispatch.configuration.fields().items()),
        ("GFLOP/s", _gflops(entry, with_interval=True)),
        ("vs untuned", _speedup(entry)),
        ("target", origin.target),
        ("IREE", origin.iree),
        ("device", origin.device),
        ("machine", origin.machine.text),
        ("measured", origin.when),
        ("flags", shlex.join(origin.flags)),
        ("module key", origin.module_key),
    ]
    return [(name, value) for name, value in rows if value]


def to_csv(entries: Iterable[Entry]) -> str:
    """CSV with a row for each entry; an unknown end of an interval is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_csv_row, entries))
    return text.getvalue()


def to_json(entries: Iterable[Entry]) -> str:
    """A JSON list of entries, each with its whole provenance."""
    return json.dumps([exported(entry) for entry in entries], indent=1) + "\n"


#: Name of a format -> its writer.
FORMATS = {"csv": to_csv, "json": to_json}


def _csv_row(entry: Entry) -> dict[str, object]:
    origin, configuration = entry.provenance, entry.dispatch.configuration
    machine = origin.machine
    values = (
        entry.operation.name,
        entry.operation.kind,
        _pairs(entry.dispatch.arguments()),
        configuration.name,
        _pairs(configuration.fields()),
        *_ends(entry.gflops),
        *_ends(entry.speedup),
        *(origin.target, origin.iree, origin.device),
        *(machine.cpu, machine.cores, machine.gpu, machine.driver, machine.system),
        *(origin.when, shlex.join(origin.flags), origin.module_key),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _pairs(values: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _ends(estimate: Estimate) -> tuple[float | str, ...]:
    return tuple(
        each if math.isfinite(each) else "" for each in (estimate.value, estimate.low, estimate.high)
    )


def _gflops(entry: Entry, *, with_interval: bool = False) -> str:
    if entry.gflops == NO_SPEED:
        return ""
    estimate = entry.gflops
    return f"{estimate.value:.4g}" + (f" ({estimate.low:.4g}-{estimate.high:.4g})" if with_interval else "")


def _speedup(entry: Entry) -> str:
    return speedup_text(Ratio(entry.speedup.value, entry.speedup.low, entry.speedup.high))
