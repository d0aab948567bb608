"""A comparison as console text, Markdown and JUnit."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from dispatch_profiler.console.markup import Case, junit_xml, markdown_code, markdown_table, markdown_text
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.compare.pairing import FailOn, Pair, RunComparison, SideSummary
from dispatch_profiler.profiler.compare.tables import csv_table, json_document
from dispatch_profiler.profiler.records.record import PROVIDER, kernel_name
from dispatch_profiler.profiler.statistics.comparison import Outcome, Ratio, percent

#: Default width, in columns, where output is not a terminal.
WIDTH = 80
_INDENT = "  "
#: Outcomes that become skipped tests in JUnit, because the speed is unknown.
_SKIPPED = (Outcome.UNCLEAR, Outcome.FAILED, Outcome.MISSING, Outcome.ADDED, Outcome.NOT_MEASURED)


def console(comparison: RunComparison, fail_on: FailOn, width: int = WIDTH) -> str:
    """Every operation with its dispatches and their reasons, followed by the summary.

    Names follow the figures if all lines fit into `width` columns, else they are on separate lines.
    """
    rows = {id(pair): _figures(pair) for pair in comparison.pairs}
    head = _columns(
        ("Outcome", "Ratio", f"{percent(comparison.options.confidence)} interval", "Base(ms)", "New(ms)")
    )
    beside = all(len(rows[id(pair)]) + 2 + len(_label(pair)) <= width for pair in comparison.pairs)
    groups: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        groups.setdefault(pair.operation, []).append(pair)
    blocks = ["\n".join(_wrapped(line, width, "") for line in _heading(comparison))]
    for operation, pairs in groups.items():
        lines = [operation, head + ("  Configuration" if beside else "")]
        for pair in pairs:
            figures = rows[id(pair)]
            lines += [f"{figures}  {_label(pair)}"] if beside else [f"{_INDENT}{_label(pair)}", figures]
            lines.append(_wrapped(pair.reason, width, 3 * _INDENT))
        blocks.append("\n".join(line.rstrip() for line in lines))
    blocks.append("\n".join(_wrapped(line, width, "") for line in summary(comparison, fail_on)))
    return "\n\n".join(blocks)


def markdown(comparison: RunComparison, fail_on: FailOn) -> str:
    """The summary, followed by a table with a row for each dispatch; for example for a pull request."""
    interval = f"{percent(comparison.options.confidence)} interval"
    head = ("Outcome", "Ratio", interval, "Base (ms)", "New (ms)", "Dispatch", "Reason")
    rows = []
    for pair in comparison.pairs:
        outcome = f"**{pair.outcome.value}**" if fail_on.applies(pair) else pair.outcome.value
        provider = "" if pair.provider == PROVIDER else markdown_text(f" ({pair.provider})")
        texts = (_ratio(pair.ratio), _interval(pair.ratio), _time(pair.base_ms), _time(pair.new_ms))
        name = f"{markdown_code(pair.name)} {provider}".strip()
        rows.append((outcome, *texts, name, markdown_text(pair.reason)))
    above = (*_heading(comparison), *summary(comparison, fail_on))
    return "\n".join(
        [*(f"- {markdown_text(line)}" for line in above), "", *markdown_table(head, "lrlrrll", rows)]
    )


def junit(comparison: RunComparison, fail_on: FailOn) -> str:
    """A test case for each dispatch: failed if `fail_on` applies, skipped if the outcome is unknown."""
    cases = []
    for pair in comparison.pairs:
        message = f"{pair.outcome.value}: {pair.reason}"
        failed = fail_on.applies(pair)
        skipped = not failed and pair.outcome in _SKIPPED
        cases.append(
            Case(
                pair.operation,
                _label(pair),
                failure=(pair.outcome.value, message) if failed else None,
                skipped=message if skipped else None,
                output=_sentence(pair),
            )
        )
    name = f"compare {comparison.base.name} {comparison.new.name}"
    return junit_xml(name, cases, _properties(comparison))


#: Output formats.
FORMATS: Mapping[str, Callable[[RunComparison, FailOn], str]] = {
    "console": console,
    "csv": csv_table,
    "json": json_document,
    "markdown": markdown,
    "junit": junit,
}
#: Ending of a file -> its format.
ENDINGS: Mapping[str, str] = {".csv": "csv", ".json": "json", ".md": "markdown", ".xml": "junit"}

# -- shared by the formats -------------------------------------------------------------------------


def _heading(comparison: RunComparison) -> list[str]:
    differences = [f"differences: {'; '.join(comparison.differences)}"] if comparison.differences else []
    return [_side("base", comparison.base), _side("new", comparison.new), *differences]


def _side(label: str, side: SideSummary) -> str:
    machines = (machine.text for machine in side.machines)
    origins = (", ".join(some) for some in (side.targets, side.devices, side.revisions, machines))
    return f"{label}: {side.name} ({'; '.join(filter(None, origins))})"


def summary(comparison: RunComparison, fail_on: FailOn) -> list[str]:
    """Sentences with the counts, the mean, caveats and failures."""
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in comparison.counts.items())
    lines = [f"{counts}; differences up to {percent(comparison.options.threshold)} count as the same."]
    mean = comparison.mean
    if mean is not None:
        of = sum(pair.ratio is not None for pair in comparison.pairs)
        lines.append(f"Geometric mean of {of}: {_ratio(mean)} ({_interval(mean)}); above 1, new is slower.")
    lines += filter(None, (comparison.unlike, comparison.caveat))
    failing = [pair.name for pair in comparison.pairs if fail_on.applies(pair)]
    if failing:
        lines.append(f"Failed by --fail-on: {', '.join(failing)}.")
    undecided = [pair.name for pair in comparison.pairs if fail_on.is_undecided(pair)]
    if undecided and fail_on.slower is not None:
        more = "measure longer with --budget" if comparison.live else "measure longer, or use --live"
        dispatches = counted(len(undecided), "unclear dispatch")
        lines.append(
            f"Undecided by --fail-on: {dispatches} may be slower by {percent(fail_on.slower)} or more"
            f" ({more}): {', '.join(undecided)}."
        )
    return lines


def _properties(comparison: RunComparison) -> Iterable[tuple[str, str]]:
    for label, side in (("base", comparison.base), ("new", comparison.new)):
        yield f"{label}.devices", ", ".join(side.devices)
        yield f"{label}.targets", ", ".join(side.targets)
        yield f"{label}.iree", ", ".join(side.revisions)
        yield f"{label}.machines", "; ".join(machine.text for machine in side.machines)
    yield "threshold", percent(comparison.options.threshold)
    yield "confidence", percent(comparison.options.confidence)
    if comparison.mean is not None:
        yield "geometric_mean", f"{_ratio(comparison.mean)} ({_interval(comparison.mean)})"
    yield "differences", "; ".join(comparison.differences)
    yield "covers", comparison.caveat
    yield "unlike", comparison.unlike


def _sentence(pair: Pair) -> str:
    if pair.ratio is None:
        sides = (("base", pair.base_ms), ("new", pair.new_ms))
        known = ", ".join(f"{side} {_time(each)} ms" for side, each in sides if each is not None)
        return ": ".join(filter(None, (known, pair.reason)))
    times = f"{_time(pair.base_ms)} ms -> {_time(pair.new_ms)} ms"
    return f"{_ratio(pair.ratio)} ({_interval(pair.ratio)}), {times}: {pair.reason}"


def _label(pair: Pair) -> str:
    return kernel_name(pair.configuration, pair.provider)


def _figures(pair: Pair) -> str:
    texts = (_ratio(pair.ratio), _interval(pair.ratio), _time(pair.base_ms), _time(pair.new_ms))
    return _columns((pair.outcome.value, *texts))


def _columns(texts: Sequence[str]) -> str:
    outcome, ratio, interval, base, new = texts
    return f"{_INDENT}{outcome:<12} {ratio:>7}  {interval:<15} {base:>9} {new:>9}"


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.3f}x"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    is_known = ratio.low > 0.0 and ratio.high < math.inf
    return f"{ratio.low:.3f} to {ratio.high:.3f}" if is_known else "unknown"


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.4g}"


def _wrapped(text: str, width: int, indent: str) -> str:
    """`text` on lines of `width` columns; longer names are not broken, so that they can be copied."""
    return textwrap.fill(
        " ".join(text.split()),
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=indent or _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
