"""`library check`: which entries of a library no launch on this machine can use, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from library_samples import FIRST, HERE, SECOND, THIRD, entry
from script_helpers import ROOT

from dispatch_profiler.__main__ import main
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.configurations import AmxMicrokernel, CpuTiles
from dispatch_profiler.library import Library, shipped_libraries
from dispatch_profiler.library.check import unusable_entries
from dispatch_profiler.library.family_files import index_text
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import parse_target

REVISION = compiler_for(parse_target("llvm-cpu")).revision
OWN = replace(HERE, iree=f"compiler {REVISION}, runtime 3.13.0", target="llvm-cpu")


def level(name: str) -> Provenance:
    return replace(OWN, machine=replace(OWN.machine, cpu_level=name, threads=2))


@pytest.fixture
def old_cpu(host_has) -> None:
    host_has("sse4_2", "popcnt", "ssse3", "sse4_1", "cx16", "lahf_lm")


def test_entries_of_this_compiler_and_cpu_are_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Library([entry(origin=OWN)]).save(tmp_path)
    assert main(["library", "check", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert f"Usable here: 1 of 1 entry of {tmp_path}" in said.err and not said.out


def test_each_unusable_entry_has_its_reason(old_cpu: None):
    library = Library(
        [
            entry(FIRST, origin=OWN),
            entry(SECOND, origin=replace(OWN, iree="compiler 3.11.0 @ 12345678, runtime 3.11.0")),
            entry(THIRD, origin=level("x86-64-v4")),
            entry(replace(FIRST, m=7), configuration=CpuTiles((64, 128), (8, 32, 4)), origin=OWN),
        ]
    )
    found = {each.name: each.reason for each in unusable_entries(library, lambda target: REVISION)}
    assert set(found) == {SECOND.name, THIRD.name, replace(FIRST, m=7).name}
    assert "compiler 3.11.0" in found[SECOND.name]
    assert "needs instructions of x86-64-v4; this CPU has those of" in found[THIRD.name]
    assert found[replace(FIRST, m=7).name].startswith("tile_config_64x128_8x32x4: ")


def test_entries_of_any_cpu_are_judged_for_their_own(
    old_cpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In CI, whose machines may be older than those that a library is for."""
    bf16 = Matmul(32, 32, 64, ElementTypes("bf16", "bf16", "f32"), rhs_layout="n")
    wrong = replace(FIRST, m=7)
    library = Library(
        [
            entry(FIRST, origin=level("x86-64-v3")),
            entry(
                bf16, configuration=AmxMicrokernel((32, 32), (32, 32), packed=True), origin=level("x86-64-v4")
            ),
        ]
    )
    library.save(tmp_path / "sound")
    Library(
        [
            *library.entries,
            entry(wrong, configuration=CpuTiles((64, 128), (8, 32, 4)), origin=level("x86-64-v4")),
        ]
    ).save(tmp_path / "wrong")

    assert main(["library", "check", str(tmp_path / "sound")]) == 1
    assert main(["library", "check", str(tmp_path / "sound"), "--any-cpu"]) == 0
    capsys.readouterr()
    assert main(["library", "check", str(tmp_path / "wrong"), "--any-cpu"]) == 1
    assert capsys.readouterr().out.startswith(f"{wrong.name}: tile_config_64x128_8x32x4: ")


@pytest.mark.parametrize("name", shipped_libraries())
def test_every_entry_of_the_shipped_libraries_is_usable(name: str):
    assert main(["library", "check", name, "--any-cpu"]) == 0


def test_the_workflow_of_the_documents_has_the_lines_of_the_page():
    jobs = yaml.safe_load((ROOT / "docs" / "check-library.yml").read_text())["jobs"]
    lines = {name: job["steps"][-1]["run"] for name, job in jobs.items()}
    assert lines == {
        "check": "dispatch-profiler library check tuned --any-cpu",
        "recheck": "dispatch-profiler library check tuned --recheck",
    }
    page = (ROOT / "docs" / "library.md").read_text()
    assert "\n".join(["", *lines.values(), ""]) in page


def test_damaged_entries_are_listed_and_the_status_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    Library([entry(FIRST, origin=OWN), entry(SECOND, origin=OWN)]).save(tmp_path)
    (file,) = tmp_path.glob("*/product.json")
    data = json.loads(file.read_text())
    data["entries"][1]["configuration"] = {"kind": "cpu_tiles"}
    file.write_text(json.dumps(data))
    assert main(["library", "check", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out.count("\n") == 1 and data["entries"][1]["name"] in said.out
    assert "Usable here: 1 of 2 entries" in said.err


def test_files_that_the_index_does_not_list_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """As after a merge of two branches, by hand, that loses a line of the index."""
    index = Library([entry(FIRST, origin=OWN)]).save(tmp_path)
    (file,) = tmp_path.glob("*/product.json")
    assert main(["library", "check", str(tmp_path)]) == 0
    index.write_text(index_text([]))
    assert main(["library", "check", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert f"{file}: {index} does not list it" in out and "Usable here: 0 of 0 entries" in err


def test_with_recheck_usable_entries_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As `tune --recheck` does, whose status counts, too."""
    from dispatch_profiler.tuner.commands import tune_cli

    Library([entry(origin=OWN)]).save(tmp_path)
    asked = []
    monkeypatch.setattr(tune_cli, "tune_or_recheck", lambda options: asked.append(options.recheck) or 1)
    assert main(["library", "check", str(tmp_path), "--recheck"]) == 1
    assert asked == [str(tmp_path)]


def test_merge_is_an_action_of_the_library_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    Library([entry(FIRST, origin=OWN)]).save(one)
    Library([entry(SECOND, origin=OWN)]).save(two)
    assert main(["library", "merge", str(one), str(two), str(both)]) == 0
    assert len(Library.load(both)) == 2


@pytest.mark.parametrize("action", ["check", "merge", "prove"])
def test_options_come_after_the_action(action: str, capsys: pytest.CaptureFixture[str]):
    assert main(["library", "--quiet", action, "x"]) == 2
    assert f"{action} comes first, then its options" in capsys.readouterr().err
