"""`dispatch-profiler library list|show|export`."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from library_samples import FIRST, HERE, IREE, OTHER, SECOND, TILES, entry

from dispatch_profiler.compiler import NullCompiler
from dispatch_profiler.configurations import Formed
from dispatch_profiler.library import Estimate, Library
from dispatch_profiler.library import cli as library_cli
from dispatch_profiler.library.cli import main
from dispatch_profiler.operations import Conv2d
from dispatch_profiler.operations.short_names import short_name

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3)
EVERY = (
    entry(FIRST),
    entry(SECOND, 12345.6, OTHER).without_speed(),
    replace(
        entry(CONVOLUTION, configuration=Formed("im2col", TILES)), speedup=Estimate(2.0, 1.5, float("inf"))
    ),
)


@pytest.fixture(autouse=True)
def tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library, measured with the installed compiler."""
    Library(EVERY).save(Path("tuned"))
    monkeypatch.setattr(library_cli, "installed_revision", lambda target: "3.13.0 @ 89ece87b")


def test_a_table_has_a_row_for_each_entry(capsys):
    assert main(["list", "tuned"]) == 0
    out, err = capsys.readouterr()
    header, *lines = out.splitlines()
    assert header.split("  ")[0] == "operation" and header.endswith("GFLOP/s  vs untuned")
    by_name = {line.split()[0]: line.split()[1:] for line in lines}
    assert by_name == {
        FIRST.name: [TILES.name, "100", "2.00x", "(1.90-2.10)"],
        SECOND.name: [OTHER.name, "2.00x", "(1.90-2.10)"],
        CONVOLUTION.name: [f"tile_config_im2col_{TILES.name.removeprefix('tile_config_')}", "100", "2.00x"],
    }
    assert err == "3 entries\n"


def test_a_damaged_entry_is_named_beside_the_table_of_the_others(capsys):
    """Its name may come from anybody, and is printed in one line."""
    (file,) = Path("tuned").glob("*/product.json")
    data = json.loads(file.read_text())
    data["entries"][0]["name"] = "a\nforged: line"
    file.write_text(json.dumps(data))
    assert main(["list", "tuned"]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(EVERY)  # a header instead of the damaged one
    assert any("product.json, entry 1 (a forged: line): " in line for line in err.splitlines())
    assert main(["export", "tuned"]) != 0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["matmul_64*"], {FIRST.name}),
        (["matmul_(64|128)x.*"], {FIRST.name, SECOND.name}),
        (["--op-kind=conv2d"], {CONVOLUTION.name}),
        ([f"{FIRST.name},conv2d*"], {FIRST.name, CONVOLUTION.name}),
    ],
)
def test_operations_are_selected_by_pattern_and_kind(capsys, arguments, found):
    assert main(["list", "tuned", *arguments]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == found


SHORT = "conv 3x3 64->64 28x28 s1"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (SHORT, {CONVOLUTION.name}),
        (f"{SHORT} (layer1.0.conv1)", {CONVOLUTION.name}),
        (f" {SHORT}  (layer1.0.conv1 +3 more) ", {CONVOLUTION.name}),
        ("conv 3x3 *", {CONVOLUTION.name}),
        (f"{SHORT},{FIRST.name}", {FIRST.name, CONVOLUTION.name}),
        ("matmul (64|128)x.*", {FIRST.name, SECOND.name}),
    ],
)
def test_operations_are_selected_by_the_names_that_tune_prints(capsys, pattern: str, found: set[str]):
    assert main(["list", "tuned", pattern]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == found
    assert main(["show", "tuned", pattern]) == 0
    out = capsys.readouterr().out
    assert set(re.findall(r"^operation +(\S+)", out, re.MULTILINE)) == found


def test_a_short_name_of_several_operations_lists_their_full_names(capsys):
    """`list` shows all of them."""
    padded = replace(CONVOLUTION, padding=(1, 1))
    Library([*EVERY, entry(padded)]).save(Path("tuned"))
    assert main(["show", "tuned", SHORT]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.endswith(f"2 operations are called '{SHORT}'")
    assert CONVOLUTION.name in hint and padded.name in hint
    assert main(["list", "tuned", SHORT]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {
        CONVOLUTION.name,
        padded.name,
    }


def test_one_entry_is_shown_in_full(capsys):
    assert main(["show", "tuned", FIRST.name]) == 0
    out, err = capsys.readouterr()
    shown = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in out.splitlines())
    assert shown["operation"] == FIRST.name and shown["short name"] == short_name(FIRST)
    assert shown["configuration"] == TILES.name
    assert shown["distribution_tile"] == "64x128"
    assert (shown["GFLOP/s"], shown["vs untuned"]) == ("100 (90-110)", "2.00x (1.90-2.10)")
    assert (shown["target"], shown["IREE"], shown["module key"]) == ("llvm-cpu", IREE, "k1")
    assert shown["flags"] == "--iree-llvmcpu-target-cpu=host -O2"
    assert shown["machine"].startswith("A, 2 cores") and not err


def test_csv_and_json_hold_every_value(capsys):
    assert main(["export", "tuned"]) == 0
    rows = {row["operation"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert (rows[FIRST.name]["gflops"], rows[FIRST.name]["speedup_low"]) == ("100.0", "1.9")
    assert rows[CONVOLUTION.name]["speedup_high"] == ""
    assert "form=im2col" in rows[CONVOLUTION.name]["configuration_fields"]
    assert main(["export", "tuned", "--format=json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found[FIRST.name]["provenance"]["machine"]["cpu"] == "A"
    assert found[FIRST.name]["operation"] == FIRST.to_dict()


@pytest.mark.parametrize(
    ("name", "begins"), [("a.csv", "operation,kind"), ("a.json", "[\n"), ("a.txt", "operation,")]
)
def test_the_name_of_the_file_decides_its_format(capsys, name: str, begins: str):
    assert main(["export", "tuned", "-o", name]) == 0
    assert Path(name).read_text().startswith(begins)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"Writing 3 entries to {name}\n")


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_an_export_says_which_entries_no_tuning_spec_has_and_how_to_get_them(capsys, format_: str):
    assert main(["export", "tuned", f"--format={format_}"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out) if format_ == "json" else list(csv.DictReader(io.StringIO(out)))
    names = {row.get("name") or row["operation"]: (row["not_in_spec"], row["code_format"]) for row in rows}
    reason = "it has a form, which replaces the operation by others"
    assert names.pop(CONVOLUTION.name) == (reason, "c")
    assert {reason for reason, _ in names.values()} == {""}
    assert err == (
        "A tuning spec cannot have 1 of 3 entries (column not_in_spec):\n"
        f"  1 x  {reason}\n"
        "Launches and torch.compile use them from the library; dispatch-profiler library export tuned --format=c "
        "-o FOLDER writes their code\n"
    )


def test_an_export_of_entries_that_a_tuning_spec_has_says_nothing_of_it(capsys):
    assert main(["export", "tuned", FIRST.name]) == 0
    assert capsys.readouterr().err == ""


def test_after_an_upgrade_of_the_compiler_a_hint_names_the_command_that_proves_entries(capsys, monkeypatch):
    monkeypatch.setattr(library_cli, "installed_revision", lambda target: "3.14.0 @ 12345678")
    assert main(["list", "tuned"]) == 0
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint == (
        f"hint: 3 entries for llvm-cpu measured with {IREE}, but 3.14.0 @ 12345678 is installed; prove its entries "
        "again with this compiler: dispatch-profiler library prove tuned"
    )


def test_the_installed_compiler_is_that_of_the_target(monkeypatch):
    monkeypatch.undo()
    assert library_cli.installed_revision("null") == NullCompiler(()).revision
    assert library_cli.installed_revision("unknown:target") == ""
    origin = replace(HERE, target="null", iree=f"compiler {NullCompiler(()).revision}, null")
    assert library_cli.prove_hints([entry(origin=origin)], "tuned") == []
    other = entry(origin=replace(origin, iree="compiler null 0, null"))
    assert len(library_cli.prove_hints([other], "tuned")) == 1


def test_an_empty_library_is_listed(capsys):
    Library().save(Path("empty"))
    assert main(["list", "empty"]) == 0
    assert capsys.readouterr() == ("", "0 entries\n")


def test_a_folder_without_a_library_names_one_inside(capsys):
    """`tune` writes its library to a folder of its output."""
    Library.load(Path("tuned")).save(Path("out/final"))
    assert main(["list", "out"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.endswith("out is no library: it has no library.json") and hint == "hint: out/final has one"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "tuned"], "show requires an operation"),
        (["show", "tuned", "matmul_65x64x32_f32t_f32t_f32t"], f"did you mean '{FIRST.name}'?"),
        (["show", "tuned", "conv 3x3 64->64 28x28 s2 (a.b)"], f"did you mean '{SHORT}'?"),
        (["list", "tuned", "conv 7x7 * s9"], "no entry is of an operation that is called 'conv 7x7 * s9'"),
        (["list", "tuned", "--format=csv"], "list has no --format and no --output"),
        (["list", "missing"], "missing: no such library"),
        (["lists", "tuned"], "did you mean 'list'?"),
        (["list", "tuned", "--op-kind=matmull"], "unknown operation kind 'matmull'"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_hint(capsys, arguments, said: str):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert said in err and not out
