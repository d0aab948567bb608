"""Libraries that come with the package, and their names on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.configurations import rejection_reason
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Library, find_library, library, shipped_libraries
from dispatch_profiler.library.cli import main
from dispatch_profiler.library.library import shipped_for, spec_file
from dispatch_profiler.library.merge_cli import main as merge
from dispatch_profiler.targets import HostCpu, cpu, parse_target


@pytest.mark.parametrize("name", shipped_libraries())
def test_every_entry_is_valid_and_faster_than_what_is_used_untuned(monkeypatch, name):
    """On a machine such as those that they were tuned on."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: HostCpu("Xeon", frozenset({"avx", "avx2", "avx512f"})))
    library = Library.load(find_library(Path(name)))
    assert len(library) >= 10
    for entry in library.entries:
        limits = parse_target(entry.provenance.target).limits
        assert rejection_reason(entry.dispatch.configuration, entry.operation, limits) is None
        assert entry.speedup.low > 1.0, entry.dispatch.name


@pytest.mark.parametrize("name", shipped_libraries())
def test_the_files_are_as_they_would_be_written(name: str, tmp_path: Path):
    """Otherwise the next entry would change others, too."""
    folder = find_library(Path(name))
    shipped = Library.load(folder)
    shipped.save(tmp_path)
    for file in shipped.files:
        assert file.read_text() == (tmp_path / file.relative_to(folder)).read_text()
    assert not shipped.unlisted


def test_all_of_them_are_small():
    """What a wheel has beside the code."""
    folders = [find_library(Path(name)) for name in shipped_libraries()]
    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    assert size < 8e6


def test_the_library_of_a_folder_takes_precedence():
    name = Path(shipped_libraries()[0])
    assert find_library(name) != name
    Library(()).save(name)
    assert find_library(name) == name


def test_an_unknown_name_is_an_error_that_names_the_shipped_ones():
    with pytest.raises(UsageError, match="xeon: no such library") as caught:
        find_library(Path("xeon"))
    assert "xeon-avx512" in caught.value.hint


def test_list_names_the_shipped_ones_and_their_machines(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_libraries())
    assert all("entries" in line for line in lines)


def test_only_list_works_without_a_library(capsys):
    assert main(["show"]) == 2
    assert "show requires a library" in capsys.readouterr().err


def test_the_spec_of_a_shipped_library_is_not_written(capsys):
    assert main(["spec", "xeon-avx512"]) == 2
    error = capsys.readouterr().err
    assert "is a shipped library" in error and str(spec_file(find_library(Path("xeon-avx512")))) in error


def test_a_shipped_library_is_merged_into_a_folder():
    Library(()).save(Path("empty"))
    assert merge(["xeon-avx512", "empty", "merged"]) == 0
    shipped = Library.load(find_library(Path("xeon-avx512")))
    assert Library.load(Path("merged")).entries == shipped.entries


def test_every_library_is_used_on_the_hardware_that_it_was_measured_on(monkeypatch: pytest.MonkeyPatch):
    """Without being named: a launch uses the one for its target, and none on other processors."""

    def shipped_on(features: frozenset[str], *targets: str) -> list[str | None]:
        for module in (library, cpu):
            monkeypatch.setattr(module, "host_cpu", lambda: HostCpu("a CPU", features))
        folders = [shipped_for(parse_target(name)) for name in targets]
        return [None if folder is None else folder.name for folder in folders]

    v2, v3, v4 = cpu.LEVELS.values()
    others = ("llvm-cpu:znver4", "llvm-cpu:neoverse-v2", "cuda:sm_80", "rocm:gfx942")
    assert shipped_on(v2 | v3 | v4, "llvm-cpu", *others) == ["xeon-avx512", None, None, None, None]
    assert shipped_on(v2 | v3, "llvm-cpu", *others) == ["epyc-avx2", None, None, None, None]
    assert shipped_on(v2, "llvm-cpu", "cuda:sm_90") == [None, "h200"]
    # Also on a CPU with AVX-512, if kernels are compiled for AVX2.
    assert shipped_on(v2 | v3 | v4, "llvm-cpu:x86-64-v3", "llvm-cpu:haswell") == ["epyc-avx2", "epyc-avx2"]
