"""The report of a tuning, or of its search alone: one HTML file with the search of each problem.

The report of a tuning also has the verdicts and the uplift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.records.record import StoredRecord
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.page import origin, render
from dispatch_profiler.profiler.report.html.style import DARK
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.report.figures import (
    ProblemEvaluations,
    group_of,
    progress,
    tiles,
    uplift_by_share,
)
from dispatch_profiler.tuner.results.uplift import (
    AGAINST_DEFAULT,
    AGAINST_LAUNCH,
    Interval,
    Judged,
    Uplift,
)
from dispatch_profiler.tuner.search.operation_search import fastest
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.problems import TIME, UNITS, TuningProblem, problem_of
from dispatch_profiler.tuner.tunings.tuning_file import Searched

#: The file among the results, and the file of a search alone, beside its records.
REPORT_FILE, SEARCH_REPORT_FILE = "report.html", "search.html"


@dataclass(frozen=True)
class TuningOutcome:
    """The outcome of a tuning: a judgement of each problem that was searched, in order, and the uplift.

    `weighed_by` is what shares are of: `time` or `flops`. `threshold` is the least speedup of an entry, less 1.
    """

    searched: tuple[Searched, ...]
    judged: tuple[Judged, ...]
    uplift: Uplift
    weighed_by: str = TIME
    threshold: float = 0.0


def render_tuning(tuned: TuningOutcome, title: str = "Tuning") -> str:
    """The text of the page."""
    problems = _problems(tuned.searched)
    judgements = Counter(each.judgement for each in tuned.judged)
    return _render(
        "tuning_report.html.j2",
        page_data(tuned, problems),
        problems,
        title=title,
        judgements=[
            (judgement.value, count, group_of(judgement)) for judgement, count in judgements.most_common()
        ],
        uplifts=_uplifts(tuned),
        weighted=tuned.uplift.weighted is not None,
        coverage=_coverage(tuned),
        threshold=tuned.threshold,
    )


def render_search(searched: Sequence[Searched], title: str = "Search") -> str:
    """The text of the page of a search whose winners are not benchmarked."""
    problems = _problems(searched)
    data = {
        "problems": [
            {
                **_problem(problem, problem_of(each.tuning)),
                "judgement": "",
                "reason": each.failure,
                "speedup": None,
            }
            for problem, each in zip(problems, searched, strict=True)
        ],
        "finalists": [
            _fastest(at, each, problem)
            for at, (problem, each) in enumerate(zip(problems, searched, strict=True))
        ],
        "evaluations": _evaluations(problems),
        "dark": DARK,
    }
    return _render("search_report.html.j2", data, problems, title=title)


def _render(
    template: str, data: Mapping[str, Any], problems: Sequence[ProblemEvaluations], **values: object
) -> str:
    """A page with the header and the conditions that both reports have."""
    evaluations = [each for problem in problems for each in problem.evaluations]
    # The tag that names the dispatch with the same kernel is no condition of the run.
    records = [replace(each.record, tags={}) for each in evaluations]
    return render(
        template,
        "report_tuning.js",
        data,
        count=len(problems),
        evaluations=len(evaluations),
        failures=sum(each.milliseconds is None for each in evaluations),
        origin=origin(records),
        conditions=conditions(records),
        warnings=warnings(records),
        **values,
    )


def page_data(tuned: TuningOutcome, problems: Sequence[ProblemEvaluations]) -> dict[str, Any]:
    """The data that the page's script shows."""
    return {
        "problems": [
            {
                **_problem(problem, judged.finalist.problem),
                "judgement": judged.judgement.value,
                "reason": judged.reason,
                "share": judged.finalist.share,
                "speedup": _speedup(judged),
            }
            for problem, judged in zip(problems, tuned.judged, strict=True)
        ],
        "finalists": [
            _finalist(at, each, judged.finalist.share)
            for at, judged in enumerate(tuned.judged)
            for each in (judged, *judged.others)
        ],
        "evaluations": _evaluations(problems),
        "uplift": uplift_by_share(tuned.judged, UNITS[tuned.weighed_by]),
        "dark": DARK,
    }


def _problems(every: Sequence[Searched]) -> list[ProblemEvaluations]:
    every_problem, start = [], 0
    for searched in every:
        operation, target = searched.tuning.operation, searched.tuning.target
        evaluations = () if searched.result is None else searched.result.evaluations
        every_problem.append(ProblemEvaluations(operation, evaluations, baselines(operation, target), start))
        start += len(evaluations)
    return every_problem


def _evaluations(problems: Sequence[ProblemEvaluations]) -> list[dict[str, Any]]:
    return [
        _evaluation(at, number, each, problem)
        for at, problem in enumerate(problems)
        for number, each in enumerate(problem.evaluations, start=1)
    ]


def _problem(problem: ProblemEvaluations, named: TuningProblem) -> dict[str, Any]:
    return {
        **_names(named),
        "start": problem.start,
        "count": len(problem.evaluations),
        "limit_ms": problem.limit_ms,
        "progress": progress(problem),
        "tiles": tiles(problem),
    }


def _names(problem: TuningProblem) -> dict[str, str]:
    """The name of the problem, what people call its operation, and the operation's full name."""
    return {"name": problem.name, "label": problem.label, "operation": problem.operation.name}


def _fastest(at: int, searched: Searched, problem: ProblemEvaluations) -> dict[str, Any]:
    """A line of the table of a search: the fastest evaluation, relative to the fastest untuned evaluation."""
    tuning, best = searched.tuning, fastest(problem.evaluations)
    untuned = fastest([each for each in problem.evaluations if each.configuration in problem.untuned])
    times = [each.milliseconds if each is not None else None for each in (untuned, best)]
    return {
        "problem": at,
        **_names(problem_of(tuning)),
        "calls": tuning.count,
        "group": "" if best is not None else "wrong or not measured",
        "reason": searched.failure or ("" if best is not None else "no candidate was verified"),
        "speedup": times[0] / times[1] if times[0] and times[1] else None,
        "reference_ms": times[0],
        "tuned_ms": times[1],
        "configuration": "" if best is None else best.configuration.name,
        "reference": "" if untuned is None else untuned.configuration.name,
        "origin": tuning.origin,
    }


def _speedup(judged: Judged) -> tuple[float, float, float] | None:
    speedup = judged.finalist.speedup
    return None if speedup is None else (speedup.value, speedup.low, speedup.high)


def _finalist(at: int, judged: Judged, share: float | None) -> dict[str, Any]:
    """A line of the table of verdicts. `share` is the problem's share."""
    finalist = judged.finalist
    problem, tuned, reference = finalist.problem, finalist.tuned, finalist.default
    value, low, high = _speedup(judged) or (None, None, None)
    return {
        "problem": at,
        **_names(problem),
        "calls": problem.count,
        "share": share,
        "judgement": judged.judgement.value,
        "group": group_of(judged.judgement),
        "reason": judged.reason,
        "speedup": value,
        "low": low,
        "high": high,
        "reference_ms": _milliseconds(reference),
        "tuned_ms": _milliseconds(tuned),
        "configuration": "" if tuned is None else tuned.configuration,
        "reference": "" if reference is None else reference.configuration,
        "origin": problem.origin,
    }


def _milliseconds(record: StoredRecord | None) -> float | None:
    """Of a record without a fault."""
    if record is None or record.measurement is None or record.is_failure:
        return None
    return record.measurement.median_ms


def _evaluation(at: int, number: int, evaluation: Evaluation, problem: ProblemEvaluations) -> dict[str, Any]:
    measurement = evaluation.record.measurement if evaluation.milliseconds else None
    milliseconds = None if measurement is None else measurement.median_ms
    is_known = measurement is not None and measurement.has_interval
    low, high = measurement.interval_ms if measurement is not None and is_known else (None, None)
    default, limit = problem.default, evaluation.record.limit_ms
    base = None if default is None else _milliseconds(default.record)
    return {
        "problem": at,
        "number": number,
        "configuration": evaluation.configuration.name,
        "kind": evaluation.configuration.kind,
        "fields": {name: str(value) for name, value in evaluation.configuration.fields().items()},
        "verdict": evaluation.record.verdict.value,
        "reason": evaluation.reason,
        "ms": milliseconds,
        "low": low,
        "high": high,
        "gflops": problem.speed(milliseconds) if milliseconds else None,
        "vs_default": base / milliseconds if base and milliseconds else None,
        "of_limit": limit / milliseconds if limit and milliseconds else None,
        "abandoned": evaluation.was_abandoned,
        "same_kernel_as": evaluation.same_kernel_as,
        "reproduce": evaluation.record.reproduce,
    }


def _uplifts(tuned: TuningOutcome) -> list[tuple[str, str, str, str]]:
    """Rows of (figure, value, interval, subject)."""
    uplift = tuned.uplift
    rows = list[tuple[str, Interval | None, str]]()
    for against, each in ((AGAINST_DEFAULT, uplift.over_default), (AGAINST_LAUNCH, uplift.over_launch)):
        if each is None:
            continue
        of = counted(each.entries, "entry")
        of = of if each.known == each.entries else f"{each.known} of {of}"
        rows += [
            (f"Average against {against}", each.average, of),
            (f"Geometric mean against {against}", each.geometric, of),
            (f"Weighted total against {against}", each.weighted, "the whole workload"),
        ]
    kept = f"{counted(uplift.kept, 'tuned winner')} against the fastest untuned configuration"
    rows += [
        ("Average of winners", uplift.average, kept),
        ("Geometric mean of winners", uplift.geometric, kept),
        ("Weighted total of winners", uplift.weighted, "the whole workload"),
    ]
    return [(name, *_texts(interval), of) for name, interval, of in rows if interval is not None]


def _texts(interval: Interval) -> tuple[str, str]:
    """`12.3 %`, `10.1 to 14.2 %`"""
    low, high = (f"{each:.1f}" if abs(each) < 1e9 else "?" for each in (interval.low, interval.high))
    return f"{interval.value:.1f} %", f"{low} to {high} %"


def _coverage(tuned: TuningOutcome) -> str:
    """Which part of the workload was tuned, and which became faster; empty if shares are unknown."""
    uplift = tuned.uplift
    if uplift.attempted is None or uplift.improved is None:
        return ""
    return f"{uplift.attempted:.1f} % of the {UNITS[tuned.weighed_by]} was tuned, and {uplift.improved:.1f} % became faster."
