"""The HTML report: what is in the file, before any browser reads it."""

from __future__ import annotations

import builtins
import hashlib
import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sample_records import REASONS, invented, written

from dispatch_profiler.errors import MissingDependency
from dispatch_profiler.profiler.measurement.measure import included
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.record import StoredRecord, Verdict
from dispatch_profiler.profiler.report.cli import main
from dispatch_profiler.profiler.report.html import (
    comparison,
    distribution,
    export,
    figures,
    file_names,
    grouped,
    heat_maps,
    render_page,
    roofline,
    scaling,
    summary,
)
from dispatch_profiler.profiler.report.html.conditions import conditions, warnings
from dispatch_profiler.profiler.report.html.groups import runs
from dispatch_profiler.profiler.report.html.page import script_json, without_samples
from dispatch_profiler.profiler.report.html.style import (
    DARK,
    distinct,
    log_scale,
    plain,
    plotly_script,
    shortened,
    tick_text,
)

RECORDS = invented(75, samples=6)
HOSTILE = "</script><img src=x onerror=alert(1)>&amp;%{x}<b>{{7*7}}\u2028\ud800"


class Page(HTMLParser):
    """Tags, the text of each <script> by its id, and everything else that people read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        else:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts["data"])


def unmeasured(record: StoredRecord, verdict: Verdict = Verdict.CRASHED) -> StoredRecord:
    return replace(record, verdict=verdict, reason=REASONS[verdict], measurement=None)


def numbers(value: Any) -> list[float]:
    """Every number in plain data, in its order."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


# -- the page --------------------------------------------------------------------------------------


def test_every_field_of_every_record_is_in_the_page():
    """The data of the page, put together again, are the lines of the file."""
    from dispatch_profiler.profiler.records.record_file import to_line

    data = Page(render_page(RECORDS, "run")).data

    for record, row in zip(RECORDS, data["records"], strict=True):
        line = json.loads(to_line(record))
        whole = {**row, **{name: pool[row[name]] for name, pool in data["shared"].items()}}
        assert whole == {name: line[name] for name in line if name not in ("format", "version")}


def test_samples_are_in_the_page_once():
    """The figure of the samples has none of its own."""
    records = invented(25, samples=20)
    text = render_page(records, "run")
    for record in records:
        if record.measurement is not None:
            # No quantile of 20 samples is the ninth of them.
            assert text.count(repr(sorted(record.measurement.samples_ms)[8])) == 1


def test_the_page_asks_for_nothing_from_elsewhere():
    """No address in a tag, and a policy under which the browser would refuse one."""
    tags = Page(render_page(RECORDS, "run")).tags
    addresses = [v for _, found in tags for k, v in found.items() if k in ("src", "href", "action", "data")]
    assert all(address and address.startswith(("#", "data:,")) for address in addresses)
    policy = next(found["content"] for tag, found in tags if tag == "meta" and "http-equiv" in found)
    assert policy and policy.startswith("default-src 'none'")


def test_hostile_names_stay_text():
    """Names, reasons, tags and the title may hold anything: no tag comes out of them."""

    def named(text: str) -> list[StoredRecord]:
        return [
            replace(
                record, dispatch=text, operation=text, configuration=configuration, provider=provider, reason=text,
                reproduce=text, tags={text: text}, op_kind=text, arguments={text: text},
                provenance=replace(record.provenance, device=text, iree=text, target=text, when=text),
            )
            for record, configuration, provider in (
                (RECORDS[0], "tile_config_default", "IREE Codegen"), (RECORDS[1], text, "IREE Codegen"),
                (RECORDS[23], text, text),
            )
        ]  # fmt: skip

    usual = [tag for tag, _ in Page(render_page(named("x"), "run", ["x", "x", "y"])).tags]

    page = Page(render_page(named(HOSTILE), HOSTILE, [HOSTILE, HOSTILE, "y"]))

    assert [tag for tag, _ in page.tags] == usual
    assert page.data["records"][0]["dispatch"] == HOSTILE
    assert HOSTILE in page.text


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("reason", "</script>\u2028\u202e\x1b[2J", 0),
        ("arguments", {"</script>": "\ud800\x00"}, 0),
        ("flops", 10**400, 2),
        ("limit_ms", math.nan, 2),
        ("arguments", {"m": 10**400}, 2),
        ("configuration_fields", {"tile": math.inf}, 2),
    ],
)
def test_a_hostile_file_gives_a_page_or_one_sentence(field, value, status, tmp_path, capsys):
    """What text may hold is shown; for what is not a number the message names the line."""
    path = written(tmp_path / "data.jsonl", RECORDS[:2])
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(second), field: value})}\n")

    assert main([str(path), "-o", str(tmp_path / "report.html")]) == status

    said = capsys.readouterr().err
    if status:
        assert re.search(rf"error: .*data\.jsonl, line 2: not a dispatch_profiler record \({field}", said)
    else:
        shown = Page((tmp_path / "report.html").read_text("utf-8")).data
        record = {**shown["records"][1], "arguments": shown["shared"]["arguments"][-1]}
        assert record[field] == value


def test_a_file_without_records_says_so():
    """There is a page, with a sentence and no figure."""
    page = Page(render_page([], "empty.jsonl"))
    assert "The file has no records: nothing was profiled." in page.text
    assert not any(tag == "section" for tag, _ in page.tags)


def test_when_everything_failed_the_page_says_so():
    """No figure, and every failure with its reason."""
    failed = [unmeasured(record, verdict) for record, verdict in zip(RECORDS, REASONS, strict=False)]
    page = Page(render_page(failed, "failed.jsonl"))
    assert "No dispatch was measured" in page.text
    assert page.data["roofline"] is None and page.data["comparison"] is None
    assert [row["reason"] for row in page.data["records"]] == [record.reason for record in failed]


def test_how_it_was_measured_is_told():
    """Mode, samples, intervals, what ended it, device, IREE, seed, when."""
    text = Page(render_page(RECORDS, "run")).text
    origin = RECORDS[0].provenance
    for told in (
        "warm",
        "6, of 8 to 512 executions",
        "interval (",
        "±",
        origin.device,
        origin.iree,
        "Invented CPU, 2 cores, 8.0 GiB, Linux 6.1.0 x86_64",
        "7",
        origin.when[:13],
    ):
        assert told in text


def test_conditions_part_what_was_measured_in_other_ways():
    """One row for each provider, mode and scope of the time; a record without a measurement has no mode."""
    cold = replace(RECORDS[1], measurement=replace(RECORDS[1].measurement, mode="cold", warnings=("drift",)))
    call = replace(cold, measurement=replace(cold.measurement, includes=included(weights=True, call=True)))
    found = conditions([RECORDS[0], cold, call, unmeasured(RECORDS[2])])
    assert [(each.mode, each.includes, each.dispatches, each.samples) for each in found] == [
        ("warm", "", 1, "6"), ("cold", "", 1, "6"),
        ("cold", "kernels; fills and copies; weight conversion; call", 1, "6"), ("not measured", "", 1, ""),
    ]  # fmt: skip
    shown = "<th>time includes</th><td>kernels; fills and copies; weight conversion; call</td>"
    assert shown in render_page([call], "A run")
    assert warnings([cold, cold]) == [("drift", 2)]


def test_warnings_that_differ_in_numbers_are_one_kind():
    """Shown as the first of them."""
    texts = (("off by 12.5 %",), ("off by 3 %", "off by 4 %"), ("clock stood still",))
    records = [
        replace(r, measurement=replace(r.measurement, warnings=w))
        for r, w in zip(RECORDS, texts, strict=False)
    ]
    assert warnings(records) == [("off by 12.5 %", 2), ("clock stood still", 1)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": math.nan}, '{"a":"nan"}'),
        ([math.inf, -math.inf], '["inf","-inf"]'),
        (2**64 - 1, '"18446744073709551615"'),
        ("</script>&", '"\\u003c/script\\u003e\\u0026"'),
        (0.1, "0.1"),
    ],
)
def test_json_in_a_script(value, text):
    """Everything that JavaScript cannot read, or would round, becomes text; nothing ends the element."""
    assert script_json(value) == text


# -- groups ----------------------------------------------------------------------------------------


def test_only_alike_is_compared():
    """Another device, compiler or mode is another group, and its label tells which."""
    one = RECORDS[0]
    other = replace(one, provenance=replace(one.provenance, device="other"))
    cold = replace(one, measurement=replace(one.measurement, mode="cold"))
    assert [group.label for group in grouped([one, RECORDS[1]])] == [one.operation]
    assert [group.label for group in grouped([one, other, cold])] == [
        f"{one.operation} ({one.provenance.device}, warm)",
        f"{one.operation} (other, warm)",
        f"{one.operation} ({one.provenance.device}, cold)",
    ]


# -- runs ------------------------------------------------------------------------------------------


def times(record: StoredRecord, factor: float, when: str = "2026-11-21T09:30:00+00:00") -> StoredRecord:
    """The record of a later run that took `factor` as long."""
    assert record.measurement is not None
    samples = tuple(factor * each for each in record.measurement.samples_ms)
    measurement = replace(record.measurement, samples_ms=samples)
    return replace(record, measurement=measurement, provenance=replace(record.provenance, when=when))


def test_each_run_is_compared_with_its_own_default():
    """Two files of one machine are two groups, told apart by the names of the files."""
    one, two = RECORDS[:3], [times(record, 3.0) for record in RECORDS[:3]]
    groups = grouped([*one, *two], ["monday.jsonl"] * 3 + ["tuesday.jsonl"] * 3)
    assert [(group.setting, len(group.entries)) for group in groups] == [
        ("monday.jsonl", 3), ("tuesday.jsonl", 3),
    ]  # fmt: skip
    pages = Page(render_page([*one, *two], "two", ["1"] * 3 + ["2"] * 3)).data["groups"]
    slow, fast = (page["vs_default"][1][0] for page in pages)
    assert slow == pytest.approx(fast)
    labels = [trace["name"] for trace in scaling(groups)["Matmul, f32"]["FLOP"]["data"]]
    assert labels == [
        f"{role} ({day}.jsonl)" for day in ("monday", "tuesday") for role in ("default", "best")
    ]


def test_a_run_that_was_appended_is_told_by_its_date_or_by_its_tags():
    """In one file a run begins where the default is measured again."""
    first = [times(record, 1.0, "2026-11-20T10:05:07+00:00") for record in RECORDS[:2]]
    second = [times(record, 1.1) for record in RECORDS[:2]]

    def told(records: list[StoredRecord]) -> list[str]:
        return [run.text for run in runs(records)]

    assert told([*first, *second]) == [*["2026-11-20 10:05"] * 2, *["2026-11-21 09:30"] * 2]
    tagged = [replace(record, tags={"run": "2", "host": "a"}) for record in second]
    assert told([*first, *tagged]) == [*["run: 1"] * 2, *["run: 2, host: a"] * 2]


def test_what_resume_measures_again_is_the_same_run():
    """An interrupted default, and configurations that were not done, belong to the run that they complete."""
    default = RECORDS[0]
    assert default.measurement is not None
    torn = replace(default, measurement=replace(default.measurement, ended_by="interrupted"))
    again = [RECORDS[1], torn, times(default, 1.0), times(RECORDS[1], 1.0), RECORDS[2]]
    assert {run.text for run in runs(again)} == {""}
    assert len(grouped(again)) == 1


def test_a_library_serves_every_run_that_did_not_measure_it():
    """numpy does not depend on the run; one that measured it itself keeps its own."""
    numpy = RECORDS[23]
    assert numpy.provider == "numpy"
    records = [RECORDS[0], numpy, times(RECORDS[0], 2.0)]
    files = ["1.jsonl", "1.jsonl", "2.jsonl"]
    assert [set(group.providers) for group in grouped(records, files)] == [{"numpy"}] * 2
    own = grouped([*records, times(numpy, 2.0)], [*files, "2.jsonl"])
    assert [group.providers["numpy"].index for group in own] == [1, 3]


def test_files_of_one_name_are_told_by_their_folders():
    """As much of the path as it takes."""
    paths = [Path(text) for text in ("a/x/data.jsonl", "b/x/data.jsonl", "a/other.jsonl", "a/x/data.jsonl")]
    assert file_names(paths) == ["a/x/data.jsonl", "b/x/data.jsonl", "other.jsonl", "a/x/data.jsonl"]


# -- summary ---------------------------------------------------------------------------------------


def test_the_summary_is_the_geometric_mean_of_best_against_each_baseline():
    """Of medians, over the operations that have both; its interval holds it."""
    groups = grouped(RECORDS)
    found = {each.baseline: each for each in summary(groups)}
    assert list(found) == ["default", "numpy", "torch"]
    for name, each in found.items():
        base = [g.default if name == "default" else g.providers[name] for g in groups]
        logs = [math.log(b.median_ms / g.best.median_ms) for g, b in zip(groups, base, strict=True)]
        assert each.mean.value == pytest.approx(math.exp(sum(logs) / 3))
        assert each.mean.low < each.mean.value < each.mean.high
        assert each.operations == each.faster + each.unclear + each.slower == 3


def test_an_operation_whose_interval_includes_1_is_unclear():
    """3 % faster with intervals of 20 % says nothing; the default itself is neither."""
    noisy = tuple(1.0 + 0.02 * (at % 11) for at in range(22))
    records = [
        replace(record, measurement=replace(record.measurement, samples_ms=tuple(s * f for s in noisy)))
        for record, f in ((RECORDS[0], 1.0), (RECORDS[1], 0.97))
    ]
    (each,) = summary(grouped(records))
    assert (each.faster, each.unclear, each.slower) == (0, 1, 0)
    assert each.mean.low < 1 < each.mean.value < each.mean.high
    (group,) = Page(render_page(records, "run")).data["groups"]
    (_, itself), (low, high, unclear) = group["vs_default"][0][2:], group["vs_default"][1][1:]
    assert low < 1 < high and unclear and not itself


def test_without_a_default_there_is_no_summary():
    """And the page still says what there is."""
    assert summary(grouped([RECORDS[1]])) == []
    assert "geometric means" not in Page(render_page([RECORDS[1]], "run")).text


def test_default_best_and_providers_are_the_fastest_of_their_kind():
    """A wrong result has no speed, however fast it was."""
    group = grouped(RECORDS[:25])[0]
    medians = {e.index: e.median_ms for e in group.entries if e.has_speed}
    ours = {i: ms for i, ms in medians.items() if RECORDS[i].provider == "IREE Codegen"}
    assert group.best and group.best.index == min(ours, key=lambda index: ours[index])
    assert group.default and RECORDS[group.default.index].configuration == "tile_config_default"
    assert set(group.providers) == {"numpy", "torch"}
    wrong = [
        replace(r, verdict=Verdict.FAILED) if i == group.best.index else r for i, r in enumerate(RECORDS[:25])
    ]
    assert grouped(wrong)[0].best != group.best


# -- figures ---------------------------------------------------------------------------------------


def test_plotly_accepts_every_figure():
    """Each property is one that plotly knows, and of its type."""
    graph = pytest.importorskip("plotly.graph_objects")
    made = dict(figures(grouped(RECORDS)))
    # Roofline, speedups, FLOP and bytes of two kinds in two types, heat map and samples of each operation.
    assert len(made) == 2 + 2 * 3 + 2 * 3
    for figure in made.values():
        graph.Figure(figure)


def test_the_roofline_has_a_point_for_each_speed():
    """GFLOP/s over FLOP/byte, and the number of the record."""
    figure = roofline(grouped(RECORDS))
    assert figure
    points = {
        index: (x, y)
        for trace in figure["data"]
        for index, x, y in zip(trace.get("customdata", []), trace["x"], trace["y"], strict=False)
    }
    expected = {
        index: (record.flops / record.bytes, record.measurement.gflops(record.flops))
        for index, record in enumerate(RECORDS)
        if record.measurement is not None
    }
    assert points == expected


def test_a_roof_bends_where_bytes_cease_to_be_the_limit():
    """220 GFLOP/s and 24 GB/s meet at 220 / 24 FLOP/byte; f16 may be twice as fast."""
    figure = roofline(grouped(invented(100, samples=2)))
    assert figure
    line, narrow = figure["data"][:2]
    assert line["name"] == "f32 roof: 220 GFLOP/s, 24 GB/s"
    assert narrow["name"] == "f16 roof: 440 GFLOP/s, 24 GB/s"
    assert (line["x"][1], line["y"][1]) == (220 / 24, 220.0)
    assert line["y"][0] == pytest.approx(line["x"][0] * 24) and line["y"][2] == 220.0


def elsewhere(record: StoredRecord, peaks: Peaks | None = None, name: str = "Other CPU") -> StoredRecord:
    machine = replace(record.provenance.machine, cpu=name)
    return replace(record, provenance=replace(record.provenance, machine=machine), peaks=peaks)


def test_each_machine_has_its_own_roofs_at_the_best_that_its_records_know():
    """A second file from the same machine may have found more; a record without any takes nothing away."""
    better = Peaks({"f32": 100e9, "f64": 60e9}, 10e9)
    other = [elsewhere(RECORDS[0], replace(better, bytes_per_second=9e9)), elsewhere(RECORDS[1], better)]
    bare = replace(RECORDS[2], peaks=None)

    figure = roofline(grouped([RECORDS[0], bare, *other]))

    assert figure
    names = [trace["name"] for trace in figure["data"] if "roof" in trace["name"]]
    assert names == [
        "f32 roof: 220 GFLOP/s, 24 GB/s (Invented CPU, 2 cores)",
        "f32 roof: 100 GFLOP/s, 10 GB/s (Other CPU, 2 cores)",
    ]
    assert len({trace["line"]["color"] for trace in figure["data"][:2]}) == 2


def test_another_machine_is_not_compared():
    """What it measured is an operation of its own, with its name."""
    labels = [group.label for group in grouped([RECORDS[0], elsewhere(RECORDS[0])])]
    assert labels == [f"{RECORDS[0].operation} ({name}, 2 cores)" for name in ("Invented CPU", "Other CPU")]


def test_the_roofs_of_a_cpu_are_not_those_of_a_gpu_beside_it():
    """What another device of the machine did has its own limit, if any."""
    record = RECORDS[1]
    gpu = replace(record, peaks=None, provenance=replace(record.provenance, device="cuda"))
    figure = roofline(grouped([RECORDS[0], gpu]))
    assert figure
    names = [trace["name"] for trace in figure["data"]]
    assert names[:2] == [
        "f32 roof: 220 GFLOP/s, 24 GB/s (local-task)",
        "hardware limit",
    ]


def unroofed(records: list[StoredRecord], **changes: Any) -> list[StoredRecord]:
    return [replace(record, peaks=None, **changes) for record in records]


def test_without_roofs_the_limit_of_each_operation_is_drawn():
    """As files of earlier versions hold it: a dash at flops / limit_ms; nothing if that is not known either."""
    figure = roofline(grouped(unroofed(RECORDS)))
    assert figure and figure["data"][0]["name"] == "hardware limit"
    record = RECORDS[0]
    assert figure["data"][0]["y"][0] == record.flops / record.limit_ms / 1e6
    bare = roofline(grouped(unroofed(RECORDS, limit_ms=0.0)))
    assert bare and "hardware limit" not in [trace["name"] for trace in bare["data"]]


def test_the_comparison_is_relative_to_the_default():
    """The default stands at 1, the largest gain on top."""
    groups = grouped(RECORDS)
    figure = comparison(groups)
    assert figure
    traces = {trace.get("name"): trace for trace in figure["data"]}
    assert traces["default"]["x"] == [1.0] * 3
    gains = [
        group.default.median_ms / group.best.median_ms for group in groups if group.default and group.best
    ]
    assert traces["best"]["x"] == sorted(gains, reverse=True)
    assert {"numpy", "torch"} <= set(traces)


def test_an_operation_whose_default_failed_is_not_compared():
    """There is nothing to be relative to."""
    assert comparison(grouped([unmeasured(RECORDS[0]), *RECORDS[1:25]])) is None


def test_the_heat_map_has_the_fastest_of_each_pair_of_tiles():
    """Every cell is the best of its tiles; sizes are sorted as numbers."""
    group = grouped(RECORDS)[0]
    (figure,) = heat_maps(group).values()
    speeds = next(trace for trace in figure["data"] if trace["type"] == "heatmap")
    rows, columns = figure["layout"]["yaxis"]["ticktext"], figure["layout"]["xaxis"]["ticktext"]
    assert columns == sorted(columns, key=lambda tiles: [int(x) for x in tiles.split("x")])
    for row, line in zip(rows, speeds["z"], strict=True):
        for column, speed in zip(columns, line, strict=True):
            alike = [
                entry.gflops
                for entry in group.entries
                if entry.has_speed and {row, column} <= set(entry.record.configuration_fields.values())
            ]
            assert speed == max(alike, default=None)


def test_speeds_that_are_all_equal_have_colours_from_0_on():
    """plotly's own range would go below 0."""
    same = [replace(r, measurement=RECORDS[0].measurement) for r in RECORDS[:25]]
    (figure,) = heat_maps(grouped(same)[0]).values()
    speeds = next(trace for trace in figure["data"] if trace["type"] == "heatmap")
    assert (speeds["zmin"], speeds["zmax"]) == (0.0, grouped(same)[0].entries[0].gflops)


def test_speed_is_drawn_against_size_for_each_kind_and_type():
    """FLOP or bytes across, GFLOP/s up; a series for default, best and each library."""
    groups = grouped(RECORDS)
    panels = scaling(groups)
    assert list(panels) == ["Matmul, f32", "BatchMatmul, f32", "Conv2d, f32"]
    for (panel, sizes), group in zip(panels.items(), groups, strict=True):
        record = group.entries[0].record
        for size, expected in (("FLOP", record.flops), ("bytes", record.bytes)):
            traces = {trace["name"]: trace for trace in sizes[size]["data"]}
            assert set(traces) == {"default", "best", "numpy", "torch"}, panel
            assert traces["best"]["x"] == (expected,) and group.best
            assert traces["best"]["y"] == (group.best.gflops,)


def test_the_part_of_the_peak_is_that_of_the_roofline():
    """The lower of FLOP/s and intensity x bandwidth, by hand."""
    page = Page(render_page(RECORDS, "run")).data
    for record, part in zip(RECORDS, page["of_peak"], strict=True):
        if record.measurement is None or record.verdict.is_failure:
            assert part is None
        else:
            roof = min(220e9, record.flops / record.bytes * 24e9)
            assert part == pytest.approx(record.flops / (record.measurement.median_ms / 1e3) / roof)


def test_every_colour_has_one_for_a_dark_page():
    """None of those that stand on white is left as it is, unless it is light enough."""
    texts = [
        text
        for _, figure in figures(grouped(invented(100)))
        for text in re.findall("#[0-9A-F]{6}", str(figure))
    ]
    assert {text for text in texts if text not in DARK} <= {"#E69F00"}


def test_tiles_of_which_all_failed_get_a_cross():
    """They were tried: they are not as those that were not."""
    failed = [unmeasured(r) if "64x64_8x32x4" in r.configuration else r for r in RECORDS[:25]]
    (figure,) = heat_maps(grouped(failed)[0]).values()
    crosses = next(trace for trace in figure["data"] if trace["type"] == "scatter")
    assert any("64x64_8x32x4" in failed[index].configuration for index in crosses["customdata"])


def test_tiles_that_do_not_vary_have_no_heat_map():
    """One configuration is no map."""
    assert heat_maps(grouped(RECORDS[:4])[0]) == {}


def test_no_interval_leaves_a_logarithmic_axis():
    """The interval of two samples begins at 0, which such an axis does not have; that of one sample is no bar."""

    def with_samples(record, *samples_ms):
        return replace(record, measurement=replace(record.measurement, samples_ms=samples_ms))

    measured = [r for r in RECORDS[:25] if r.measurement]
    wide = [with_samples(measured[0], 0.1, 0.3), with_samples(measured[1], 1.0), *measured[2:4]]
    figure = distribution(grouped(wide)[0])
    assert figure and figure["layout"]["xaxis"]["type"] == "log"
    medians = next(trace for trace in figure["data"] if "error_x" in trace)
    bars = medians["error_x"]
    ends = [at - below for at, below in zip(medians["x"], bars["arrayminus"], strict=True)]
    samples = [ms for record in wide for ms in record.measurement.samples_ms]
    assert all(end >= 0.79 * min(samples) for end in ends)
    single = medians["x"].index(1.0)
    assert bars["array"][single] == bars["arrayminus"][single] == 0.0


def test_forms_with_the_same_tiles_have_maps_of_their_own():
    """The first is the map of the best configuration; the words of their names tell kinds apart."""

    def of_form(record, name, fields):
        fields = {**record.configuration_fields, **fields}
        name = record.configuration.replace("tile_config_", f"tile_config_{name}_")
        faster = replace(
            record.measurement, samples_ms=tuple(ms / 100 for ms in record.measurement.samples_ms)
        )
        measurement = faster if fields.get("form") else record.measurement
        dispatch = f"{record.operation}_{name}"
        return replace(
            record,
            dispatch=dispatch,
            configuration=name,
            configuration_fields=fields,
            measurement=measurement,
        )

    direct = [r for r in RECORDS[:25] if r.configuration_fields and r.measurement]
    others = [of_form(r, "microkernel", {}) for r in direct] + [
        of_form(r, "winograd_2", {"form": "winograd_2"}) for r in direct
    ]
    (group,) = grouped([*RECORDS[:25], *others])
    maps = heat_maps(group)
    assert list(maps) == ["winograd 2", "tiles", "microkernel"] and group.best
    speeds = next(trace for trace in maps["winograd 2"]["data"] if trace["type"] == "heatmap")
    shown = [index for line in speeds["customdata"] for index in line if index is not None]
    records = {entry.index: entry.record for entry in group.entries}
    assert group.best.index in shown
    assert {records[index].configuration_fields["form"] for index in shown} == {"winograd_2"}


def test_the_distribution_has_every_sample_and_the_page_puts_them_back():
    """Without its samples, `meta` tells whose they are, in which order."""
    group = grouped(RECORDS[:25])[0]
    figure = distribution(group)
    assert figure
    owners = figure["data"][0]["meta"]["samples_of"]
    samples = [sample for index in owners for sample in RECORDS[index].measurement.samples_ms]
    assert figure["data"][0]["x"] == samples
    assert owners == [entry.index for entry in group.ranked]
    assert without_samples(figure)["data"][0]["x"] == []


def test_names_are_shown_by_plotly_as_they_stand():
    """It would read tags; long ones lose their middle."""
    assert plain("<b>&") == "&lt;b&gt;&amp;"
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcde…hijk"


@pytest.mark.parametrize("low", [3e-5, 0.4, 7.0, 1.2e4, 3e9])
@pytest.mark.parametrize("ratio", [1.5, 7.0, 90.0, 1e3, 1e6])
def test_ticks_of_logarithmic_axes_have_room(low, ratio):
    """Some ticks, evenly labelled, at least 34 of 560 pixels apart; plotly chooses only in a short range."""
    axis = log_scale([low, low * ratio])
    ticks = axis.get("tickvals", [])
    assert len(ticks) >= 3 or ratio == 1.5
    gaps = [math.log(b / a) / math.log(ratio) * 560 for a, b in itertools.pairwise(ticks)]
    assert all(gap >= 34 for gap in gaps)
    assert len(set(axis.get("ticktext", []))) == len(ticks)
    assert [tick_text(value) for value in (0.02, 1500, 20e3, 3e6, 1.5e15)] == [
        "0.02",
        "1500",
        "20k",
        "3M",
        "1.5e+03T",
    ]


def test_labels_that_would_be_the_same_show_where_they_part():
    """Two convolutions differ in the middle of their names only."""
    names = [
        f"conv2d_1x28x28x64_3x3x64x64_1x28x28x64_{t}nhwc_{t}hwcf_{t}nhwc_s1x1_p1x1_g1" for t in ("f32", "f16")
    ]
    assert distinct([*names, "matmul_4x4x4", names[0]], 42) == [
        "conv2d_1x28x28…_f32nhwc_f32hwcf_f32nhwc_s…", "conv2d_1x28x28…_f16nhwc_f16hwcf_f16nhwc_s…",
        "matmul_4x4x4", "conv2d_1x28x28…_f32nhwc_f32hwcf_f32nhwc_s…",
    ]  # fmt: skip
    assert distinct(["a" * 50, "a" * 50], 10) == ["aaaaa…aaaa"] * 2


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "data.jsonl", RECORDS)


def test_the_command_writes_one_file(data, tmp_path, capsys):
    """What it did goes to standard error; nothing else is left."""
    output = tmp_path / "report" / "out.html"
    output.parent.mkdir()
    assert main([str(data), str(data), "-o", str(output)]) == 0
    assert [path.name for path in output.parent.iterdir()] == ["out.html"]
    assert capsys.readouterr().err == (
        f"ignoring 75 duplicate records of 150\nWriting the report of 75 dispatches to {output}\n"
    )
    assert len(Page(output.read_text()).data["records"]) == 75


def test_what_was_interrupted_and_measured_again_is_left_out(tmp_path):
    default = RECORDS[0]
    assert default.measurement is not None
    torn = times(default, 0.01)
    torn = replace(torn, measurement=replace(torn.measurement, ended_by="interrupted"))
    data = written(tmp_path / "resumed.jsonl", [torn, *RECORDS[1:3], default])
    assert main([str(data), "-o", "report.html"]) == 0
    records = Page(Path("report.html").read_text()).data["records"]
    assert len(records) == 3
    assert {record["measurement"]["ended_by"] for record in records if record["measurement"]} <= {
        "interval",
        "budget",
    }


def test_the_module_has_the_command(data):
    """`python -m dispatch_profiler report`."""
    from dispatch_profiler.__main__ import main as module_main

    assert module_main(["report", str(data)]) == 0
    assert Path("report.html").exists()
    assert module_main(["reprot"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: RECORDS"),
        (["none.jsonl"], "cannot read none.jsonl"),
        (["{data}", "-o", "none/report.html"], "there is no folder none"),
        (["{data}", "-o", "."], "--output: . is a folder"),
        (["{csv}"], "not a dispatch_profiler record"),
        (["{data}", "--figures={data}"], "is not a folder"),
        (["{data}", "--outptu=x"], "--outptu"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(arguments, message, data, tmp_path, capsys):
    """And exit status 2."""
    pytest.importorskip("kaleido")
    csv = tmp_path / "data.csv"
    csv.write_text("Dispatch,Provider\na,b\n")
    status = main([text.format(data=data, csv=csv) for text in arguments])
    error = capsys.readouterr().err
    assert status == 2
    assert re.search(r"^dispatch-profiler report: error: .*" + re.escape(message), error, flags=re.M)


def test_what_is_not_installed_is_named_with_its_pip_line(tmp_path, monkeypatch):
    """--figures needs kaleido."""
    without(monkeypatch, "kaleido")
    with pytest.raises(MissingDependency, match="kaleido") as error:
        export(grouped(RECORDS), tmp_path)
    assert "python -m pip install" in error.value.hint


def test_the_page_needs_nothing_that_is_not_installed(monkeypatch):
    """plotly's JavaScript comes with this package, as npm has it."""
    without(monkeypatch, "plotly")
    without(monkeypatch, "kaleido")
    assert Page(render_page(RECORDS, "run")).data["roofline"]
    assert plotly_script().read_text().startswith("/**\n* plotly.js (cartesian - minified) v4.1.1\n")
    digest = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert hashlib.sha256(plotly_script().read_bytes()).hexdigest() == digest
    assert "MIT" in (plotly_script().parent / "LICENSE").read_text()


def without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    importing = builtins.__import__

    def fails(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fails)
