"""`dispatch-profiler compare` on record files that are made here, and what it writes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.compare.cli import main, parse_fail_on
from dispatch_profiler.profiler.compare.pairing import (
    By,
    CompareOptions,
    FailOn,
    Pair,
    RunComparison,
    SideSummary,
    compare_records,
)
from dispatch_profiler.profiler.compare.render import FORMATS, console
from dispatch_profiler.profiler.measurement.measure import Measurement, included
from dispatch_profiler.profiler.records.record import Provenance, Record, StoredRecord, Verdict, stored
from dispatch_profiler.profiler.records.record_file import read_records, to_line
from dispatch_profiler.profiler.statistics.comparison import Outcome, Ratio

PROVENANCE = Provenance("local-task", "llvm-cpu", "compiler 3.13.0, runtime 3.13.0", 3)
NEWER = replace(PROVENANCE, iree="compiler 3.14.0, runtime 3.14.0")
TILES = CpuTiles((64, 128), (8, 32, 4))
#: One sample in ten is 5 % off, on both sides of the median: an interval that is narrow, but not nothing.
DISPATCH, LIBRARY = included(weights=True, call=False), included(weights=False, call=True)
SHAPE = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.0005, 0.9995, 1.05, 0.95) * 3


def matmul(m):
    return Matmul(m=m, n=512, k=1024)


def record(operation=None, configuration=None, ms=0.25, *, provenance=PROVENANCE, shape=SHAPE, **fields):
    """One record; `ms` is the median, or None if it was not measured."""
    dispatch = Dispatch(operation or matmul(256), configuration or Default())
    measurement = (
        None if ms is None else Measurement(tuple(ms * part for part in shape), fields.pop("executions", 80))
    )
    if measurement is not None:
        measurement = replace(
            measurement,
            mode=fields.pop("mode", "warm"),
            warnings=tuple(fields.pop("warnings", ())),
            includes=fields.pop("includes", DISPATCH),
        )
    verdict = fields.pop("verdict", Verdict.SUCCESS)
    return stored(Record(dispatch, provenance, verdict, measurement=measurement, **fields))


def write(name: str, records: list[StoredRecord]) -> str:
    Path(name).write_text("".join(f"{to_line(each)}\n" for each in records))
    return name


def pair_of(base, new, **options) -> Pair:
    (pair,) = compare_records([base], [new], CompareOptions(**options)).pairs
    return pair


@pytest.fixture
def files() -> tuple[str, str]:
    """Every outcome once."""
    wide = tuple(1 + 0.1 * part for part in range(-3, 4))
    conv = Conv2d(1, 28, 28, 64, 64, 3, 3)
    base = [
        record(matmul(256), Default(), 0.25),
        record(matmul(256), TILES, 0.2),
        record(matmul(512), Default(), 0.5),
        record(matmul(512), TILES, 0.4),
        record(conv, Default(), 7.0, shape=wide),
        record(matmul(768), Default(), 1.0),
        record(matmul(768), TILES, 1.0),
        record(matmul(1024), Default(), 1.0),
    ]
    new = [
        record(matmul(256), Default(), 0.2625, provenance=NEWER),
        record(matmul(256), TILES, 0.16, provenance=NEWER, mode="cold"),
        record(matmul(512), Default(), 0.5005, provenance=NEWER),
        record(matmul(512), TILES, 0.406, provenance=NEWER, warnings=["the clock jumped back"]),
        record(conv, Default(), 7.1, shape=wide, provenance=NEWER),
        record(
            matmul(768),
            TILES,
            None,
            provenance=NEWER,
            verdict=Verdict.FAILED,
            reason="2 of 4 <elements> | nan",
        ),
        record(matmul(1024), Default(), None, provenance=NEWER),
        record(matmul(1024), TILES, 1.0, provenance=NEWER),
    ]
    return write("base.jsonl", base), write("new.jsonl", new)


# -- the three forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", list(FORMATS))
def test_every_outcome_is_written(form, files, capsys, golden):
    """Read the golden files when they change."""
    assert main([*files, f"--format={form}", "--fail-on=slower:3%,failed"]) == 1
    golden(capsys.readouterr().out)


def test_a_wide_terminal_has_names_behind_the_figures(files, golden):
    base, new = (read_records(Path(name)) for name in files)
    golden(console(compare_records(base, new, CompareOptions()), FailOn(), width=120) + "\n")


def test_off_a_terminal_only_names_are_longer_than_80_columns(files, capsys):
    main([*files])
    long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert all(len(line.split()) == 1 for line in long)


@pytest.mark.parametrize("columns", [100, 300])
def test_no_line_on_a_terminal_is_over_120_columns(files, capsys, monkeypatch, columns):
    """Also where names are long."""
    names = []
    for name in files:
        records = read_records(Path(name))
        names.append(
            write(f"long_{name}", [replace(r, operation=r.operation + "_long" * 40) for r in records])
        )
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(names)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    assert "_long" * 40 in "".join(out.split())


def test_a_file_holds_what_would_have_been_printed(files, capsys):
    main([*files, "--format=markdown"])
    printed = capsys.readouterr().out
    assert main([*files, "--format=markdown", "-o", "out.md"]) == 0
    assert capsys.readouterr().out == ""
    assert Path("out.md").read_text() == printed


@pytest.mark.parametrize(
    ("name", "start"), [("o.csv", "dispatch,"), ("o.json", "{"), ("o.md", "- base"), ("o.xml", "<?xml"), ("o.txt", "base:")]
)  # fmt: skip
def test_the_ending_of_a_file_chooses_the_form(name, start, files):
    assert main([*files, "-o", name]) == 0
    assert Path(name).read_text().startswith(start)
    assert main([*files, "-o", name, "--format=json"]) == 0
    assert Path(name).read_text().startswith("{")


def test_the_table_has_medians_and_ratio_with_its_interval(files, capsys):
    """Unknown values are empty in CSV, and null in JSON."""
    main([*files, "--format=csv"])
    rows = {row["dispatch"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    row = rows["matmul_256x512x1024_f32t_f32t_f32t_tile_config_default"]
    assert (row["outcome"], row["base_median(ms)"], row["fails"]) == ("slower", "0.25", "false")
    assert float(row["ratio"]) == pytest.approx(1.05)
    assert float(row["ratio_low"]) < 1.05 < float(row["ratio_high"])
    main([*files, "--format=json"])
    document = json.loads(capsys.readouterr().out)
    (added,) = (each for each in document["pairs"] if each["outcome"] == "added")
    assert (added["ratio"], added["base_median_ms"], added["new_median_ms"]) == (
        None,
        None,
        pytest.approx(1.0),
    )
    assert document["counts"]["slower"] == 2 and document["geometric_mean"]["ratio"] > 0


def test_what_is_written_to_a_file_is_summed_up_on_stderr(files, capsys):
    """The log of a failed job says why it failed."""
    assert main([*files, "--format=junit", "--fail-on=slower:3%,failed", "-o", "out.xml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 slower, 1 faster" in captured.err
    assert "Failed by --fail-on: matmul_256x512x1024" in captured.err
    assert "Writing out.xml" in captured.err


def test_control_characters_of_a_record_do_not_reach_the_terminal(capsys):
    bad = record(verdict=Verdict.FAILED, reason="clear\x1b[2J\r\x9b31m \u202e")
    write("bad.jsonl", [bad])
    assert main(["bad.jsonl", "bad.jsonl"]) == 0
    out = capsys.readouterr().out
    assert r"clear\x1b[2J" in out and r"\x9b31m \u202e" in out
    assert all(char.isprintable() or char == "\n" for char in out)


@pytest.mark.parametrize("form", list(FORMATS))
def test_text_that_utf_8_cannot_hold_is_escaped_in_a_file(form):
    """A lone surrogate in a reason, as JSON may have it, and a byte in the name of a file."""
    name = write(os.fsdecode(b"\xff.jsonl"), [record(verdict=Verdict.FAILED, reason="half a pair: \ud83d")])
    assert main([name, name, f"--format={form}", "-o", "out"]) == 0
    assert "half a pair: " in Path("out").read_text(encoding="utf-8")


def test_junit_counts_what_it_holds(files, capsys):
    main([*files, "--format=junit", "--fail-on=slower:3%"])
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    counted = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    assert {name: int(suite.attrib[name]) for name in counted} == {
        name: len(suite.findall(path)) for name, path in counted.items()
    }
    assert suite.attrib["failures"] == "1"


@given(reason=st.text(), name=st.text(min_size=1), form=st.sampled_from(list(FORMATS)))
@settings(max_examples=200)
def test_whatever_a_reason_holds_no_form_breaks(reason, name, form):
    """Control characters, pipes, tags, line breaks: XML parses, a Markdown row stays one row of 7 cells."""
    pair = Pair(name, name, name, "IREE Codegen", Outcome.SLOWER, reason, Ratio(2, 1.5, 3), 1.0, 2.0)
    side = SideSummary(name, ("local-task",), ("llvm-cpu",), ("3.13",))
    text = FORMATS[form](RunComparison(side, side, (pair,), CompareOptions(), False), FailOn(0.03))
    if form == "junit":
        assert len(ElementTree.fromstring(text).findall("testsuite/testcase/failure")) == 1
    if form == "markdown":
        rows = [line for line in text.split("\n") if line.startswith("|")]
        assert len(rows) == 3
        assert rows[2].replace("\\|", "").count("|") == 8
    if form == "json":
        (found,) = json.loads(text)["pairs"]
        assert (found["reason"], found["ratio_low"], found["fails"]) == (reason, 1.5, True)
    if form == "csv":
        (found,) = csv.DictReader(io.StringIO(text, newline=""))
        assert (found["reason"], found["dispatch"], found["new_median(ms)"]) == (reason, name, "2.0")


# -- which belong together -------------------------------------------------------------------------


@pytest.mark.parametrize("other", [NEWER, replace(PROVENANCE, target="llvm-cpu:znver4")])
def test_another_compiler_or_target_is_no_other_way_of_measuring(other):
    """They are what is compared; the heading names them."""
    assert "differently" not in pair_of(record(), record(provenance=other)).reason


def test_more_confidence_needs_more_samples():
    few = record(shape=SHAPE[:10])
    assert "needed" not in pair_of(few, few).reason
    assert pair_of(few, few, confidence=0.999).reason == (
        "base has 10 samples, but at least 11 are required; new has 10 samples, but at least 11 are required"
    )


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"mode": "cold"}, "measured differently: warm vs. cold caches"),
        (
            {"includes": LIBRARY},
            "measured differently: only base includes weight conversion, only new includes call",
        ),
        ({"includes": ()}, "measured differently: new does not state what its time includes"),
        ({"executions": 8}, "measured differently: samples of 80 vs. 8 executions"),
        (
            {"provenance": replace(PROVENANCE, device="cuda")},
            "measured differently: device local-task vs. cuda",
        ),
        ({"warnings": ["it drifted"]}, "warning in new: it drifted"),
    ],
)
def test_what_was_measured_differently_says_so(new, words):
    """It is compared all the same."""
    pair = pair_of(record(), record(**new))
    assert pair.ratio is not None
    assert pair.reason.endswith(f"; {words}")


KEYED = replace(PROVENANCE, module_key="1", flags=("--iree-hal-target-device=local",))


@pytest.mark.parametrize(
    ("new", "differences"),
    [
        ({"provenance": KEYED}, ()),
        (
            {"provenance": replace(KEYED, module_key="2", flags=(*KEYED.flags, "--iree-opt-level=O0"))},
            ("flags: only new has --iree-opt-level=O0",),
        ),
        (
            {"provenance": replace(KEYED, module_key="2", flags=())},
            ("flags: only base has --iree-hal-target-device=local",),
        ),
        ({"provenance": replace(KEYED, module_key="2")}, ("content of the compiled modules of 1 dispatch",)),
        ({"provenance": replace(KEYED, module_key="", flags=())}, ()),
        ({"provenance": replace(KEYED, seed=7)}, ("seed: 3 vs. 7",)),
        ({"provenance": replace(KEYED, target="vmvx")}, ("target: llvm-cpu vs. vmvx",)),
        (
            {"provenance": KEYED, "includes": LIBRARY},
            ("times include: kernels; fills and copies; weight conversion vs. kernels; fills and copies; call",),
        ),
        ({"provenance": KEYED, "includes": ()}, ()),
        (
            {"provenance": replace(KEYED, iree="compiler 4"), "mode": "cold"},
            ("software: compiler 3.13.0, runtime 3.13.0 vs. compiler 4", "caches: warm vs. cold"),
        ),
    ],
)  # fmt: skip
def test_the_heading_names_what_the_sides_do_not_share(new, differences, capsys):
    """A record of version 1 does not tell its flags: nothing is said of them."""
    base, other = record(provenance=KEYED), record(**new)
    assert compare_records([base], [other], CompareOptions()).differences == differences
    assert main([write("a.jsonl", [base]), write("b.jsonl", [other])]) == 0
    heading = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert heading.endswith(f"differences: {'; '.join(differences)}") == bool(differences)


def test_fewer_executions_that_last_as_long_are_the_same_way():
    """A kernel that is 10 times slower fills its time with a tenth of the executions."""
    assert "differently" not in pair_of(record(ms=0.1, executions=100), record(ms=1.0, executions=10)).reason


@pytest.mark.parametrize(
    ("base", "new", "outcome", "reason"),
    [
        ({"ms": None}, {}, Outcome.NOT_MEASURED, "no samples in base"),
        ({"ms": None}, {"ms": None}, Outcome.NOT_MEASURED, "no samples in base and new"),
        ({"ms": None, "verdict": Verdict.CRASHED}, {}, Outcome.NOT_MEASURED, "base: Crashed"),
        ({}, {"ms": None, "verdict": Verdict.TIMED_OUT, "reason": "2 s"}, Outcome.FAILED, "new: Timed out (2 s)"),
        ({}, {"shape": (1.0,) * 4}, Outcome.UNCLEAR, "new has 4 samples, but at least 5 are required"),
        ({"shape": (1.0, 0.0) * 9}, {}, Outcome.UNCLEAR,
         "base has a sample that is not a positive time: its clock cannot be trusted"),
        ({}, {"shape": tuple(1 + 0.01 * at for at in range(20))}, Outcome.UNCLEAR,
         "the 20 samples of new are autocorrelated (drift?): effective sample size 3.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_says_why(base, new, outcome, reason):
    """20 that rise: signs are 10 times -, 10 times +, with autocorrelation 1 - 3/20 lag.

    In pairs 1.85 + 1.25 + 0.65 + 0.05, so 20 / (2 * 3.8 - 1) = 3.03.
    """
    pair = pair_of(record(**base), record(**new))
    assert (pair.outcome, pair.reason) == (outcome, reason)


def test_several_records_of_a_dispatch_are_runs_of_it():
    """Runs that are 5 % apart hide 1 %, which single ones would show; the caveat goes."""
    base = [record(ms=ms) for ms in (1.0, 1.05, 0.95, 1.02)]
    new = [record(ms=1.03 * ms) for ms in (1.0, 1.05, 0.95, 1.02)]
    several = compare_records(base, new, CompareOptions())
    single = compare_records(base[:1], new[:1], CompareOptions())
    assert several.pairs[0].outcome is Outcome.UNCLEAR
    assert single.pairs[0].outcome is Outcome.SLOWER
    assert several.caveat.startswith("The intervals cover the noise between the runs")
    assert single.caveat.startswith("The intervals cover the noise within each run, but not")


def test_what_was_interrupted_and_measured_again_is_no_run(capsys):
    """Its few samples, of a machine that was slower then, do not count beside those of --resume."""
    torn = record(ms=0.5)
    torn = replace(torn, measurement=replace(torn.measurement, ended_by="interrupted"))
    base, new = write("base.jsonl", [record(ms=0.25)]), write("new.jsonl", [torn, record(ms=0.25)])
    assert main([base, new, "--fail-on=slower:3%"]) == 0
    assert "1.000x" in capsys.readouterr().out
    # One that nothing replaces is all that is known.
    assert main([base, write("torn.jsonl", [torn]), "--fail-on=slower:3%"]) == 1


def test_one_configuration_against_another_by_operation(capsys):
    both = write("both.jsonl", [record(ms=0.25), record(configuration=TILES, ms=0.5)])
    choice = ["--base-dispatches=*_default", "--new-dispatches=*_8x32x4"]
    assert main([both, both, "--by=operation", *choice, "--fail-on=slower:3%"]) == 1
    out = capsys.readouterr().out
    assert f"tile_config_default -> {TILES.name}" in out
    assert "2.000x" in out


def test_providers_are_compared_with_themselves():
    numpy = replace(record(ms=2.0), provider="numpy")
    found = compare_records([record(), numpy], [numpy], CompareOptions())
    assert [(pair.provider, pair.outcome) for pair in found.pairs] == [
        ("IREE Codegen", Outcome.MISSING),
        ("numpy", Outcome.SAME),
    ]


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [
        ("", 0), ("slower:3%", 1), ("slower:4.9%", 1), ("slower:6%", 3), ("slower:0.03", 1), ("slower:58%", 0),
        ("failed", 1), ("missing", 1), ("unclear", 1), ("not-measured", 1),
    ],
)  # fmt: skip
def test_the_exit_status_is_what_was_asked_for(fail_on, status, files):
    """The only dispatch that is slower is so by 5 %. One that is unclear may be slower by up to 57.9 %."""
    assert main([*files, f"--fail-on={fail_on}"]) == status


def test_what_is_unclear_passes_only_if_it_cannot_be_slower_by_as_much(capsys):
    unclear = {"shape": tuple(1 + 0.1 * part for part in range(-3, 4))}
    few = {"shape": (1.0,)}
    for name, shape in (("wide", unclear), ("single", few)):
        base, new = (write(f"{name}_{side}.jsonl", [record(**shape)]) for side in ("base", "new"))
        assert main([base, new, "--fail-on=slower:3%"]) == 3
        printed = " ".join(capsys.readouterr().out.split())
        assert "Undecided by --fail-on: 1 unclear dispatch may be slower by 3% or more" in printed
        assert main([base, new, "--fail-on=failed,missing"]) == 0
        assert main([base, new, "--fail-on=slower:3%,unclear"]) == 1
        capsys.readouterr()


def test_the_interval_of_a_single_sample_is_unknown(capsys):
    base, new = write("base.jsonl", [record()]), write("new.jsonl", [record(ms=0.5, shape=(1.0,))])
    pair = pair_of(record(), record(ms=0.5, shape=(1.0,)))
    assert pair.outcome is Outcome.UNCLEAR and pair.ratio == Ratio(2.0, 0.0, float("inf"))
    main([base, new, "--format=csv"])
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == ("2.0", "", "")
    for form in set(FORMATS) - {"csv", "json"}:
        assert main([base, new, f"--format={form}"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert (
            "2.000x" in printed and "unknown" in printed and "inf" not in printed.replace("information", "")
        )
        assert "0.25" in printed and "0.5" in printed


def test_nothing_to_object_to_is_no_failure():
    base = write("base.jsonl", [record()])
    assert main([base, base, "--fail-on=slower:1%,failed,missing,unclear,not-measured"]) == 0


def test_fail_on_is_read_into_one_object():
    assert parse_fail_on("slower:3%, failed") == FailOn(0.03, frozenset({Outcome.FAILED}))
    assert parse_fail_on("") == FailOn()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--fail-on=slower"], "--fail-on=slower: slower requires a percentage", "slower:3%"),
        (["--fail-on=slower:x"], "but got 'x'", "slower:3%"),
        (["--fail-on=slower:300%"], "but got '300%'", "slower:3%"),
        (["--fail-on=failed:3%"], "failed takes no percentage", "slower:3%"),
        (["--fail-on=fialed"], "unknown outcome 'fialed'", "did you mean 'failed'?"),
        (["--fail-on=slower:0.5%"], "is below --threshold=1%", "add --threshold=0.5%"),
        (["--threshold=-1%"], "but got '-1%'", "--help"),
        (["--confidence=10%"], "expected 50% to 99.99%, but got '10%'", "--help"),
        (["--treshold=1%"], "unrecognized arguments: --treshold=1%", "did you mean '--threshold'?"),
        (["--dispatches=nothing*"], "no dispatch matches 'nothing*'", ""),
        (["--by=operation"], "has more than one configuration of matmul_256", "--base-dispatches=PATTERN"),
        (["-o", "no/such/folder.md"], "--output: there is no folder no/such", ""),
        (["-o", "."], "--output: . is a folder", ""),
    ],
)
def test_a_request_that_cannot_be_met_is_a_sentence_and_a_hint(arguments, message, hint, files, capsys):
    assert main([*files, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dispatch-profiler compare: error: ")
    assert message in error
    assert hint in error


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (None, "cannot read new.jsonl"),
        ([], "new.jsonl has no records"),
        ([record(matmul(8))], "no dispatch is in both base.jsonl and new.jsonl"),
    ],
)
def test_files_with_nothing_to_compare_are_refused(records, message, capsys):
    """Whatever --fail-on says: nothing compared is nothing proven."""
    write("base.jsonl", [record()])
    if records is not None:
        write("new.jsonl", records)
    assert main(["base.jsonl", "new.jsonl", "--fail-on=slower:3%"]) == 2
    assert message in capsys.readouterr().err


def test_operations_without_a_choice_of_configuration_are_refused():
    with pytest.raises(UsageError, match="base has more than one configuration"):
        compare_records([record(), record(configuration=TILES)], [record()], CompareOptions(by=By.OPERATION))


# -- python -m dispatch_profiler -------------------------------------------------------------------


def test_the_package_runs_its_commands(files):
    done = subprocess.run(
        [sys.executable, "-m", "dispatch_profiler", "compare", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Geometric mean" in done.stdout
