"""`generate --workload=FILE`: the operations of logs and of workload.yaml."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.operations import Matmul
from dispatch_profiler.workloads import Workload, WorkloadEntry, read_workload, write_workload

ROOT = Path(__file__).parents[2]
LOG = ROOT / "benchmarks" / "workloads" / "gemm_log.yaml"
DAMAGED = ROOT / "tests" / "workloads" / "gemm_log_damaged.yaml"
NULL = ("--target=null", "--default-config=only")


def entries(folder: str = ".") -> dict[str, int]:
    return {each.operation.name: each.count for each in load_manifest(Tree(Path(folder))).entries}


def test_the_operations_of_a_log_are_generated(run):
    outcome = run("generator", *NULL, f"--workload={LOG}")
    assert outcome.status == 0
    assert list(entries()) == [each.operation.name for each in read_workload(LOG).workload.entries]
    assert "Read 11 lines with 10 operations; skipped 0 damaged and 4 unsupported" in outcome.err
    assert "gemm_log.yaml:6: not supported: a bias of type f32_r" in outcome.err


def test_damaged_lines_are_listed_and_make_the_exit_status_1(run):
    outcome = run("generator", *NULL, "--quiet", "--workload", str(DAMAGED))
    assert outcome.status == 1
    assert "gemm_log_damaged.yaml:6: M must be at least 1, but got -5" in outcome.err
    assert len(entries()) == 5


def test_several_files_are_merged_and_saved(run, tmp_path: Path):
    mine, saved = tmp_path / "mine.yaml", tmp_path / "saved.yaml"
    write_workload(
        Workload((WorkloadEntry(Matmul(8, 8, 8), 3), WorkloadEntry(Matmul(64, 512, 512), 5))), mine
    )
    outcome = run("generator", *NULL, f"--workload={mine}", f"--workload={LOG}", f"--save-workload={saved}")
    assert outcome.status == 0
    assert read_workload(saved).workload == read_workload(mine, LOG).workload
    assert entries()["matmul_64x512x512_f32t_f32t_f32t"] == 455


def test_a_dry_run_saves_nothing(run, tmp_path: Path):
    saved = tmp_path / "saved.yaml"
    assert run("generator", *NULL, "--dry-run", f"--workload={LOG}", f"--save-workload={saved}").status == 0
    assert not saved.exists()


def test_a_sweep_is_saved_too(run, tmp_path: Path):
    saved = tmp_path / "saved.yaml"
    assert (
        run("generator", *NULL, "--m=8", "--n=8", "--k=8", "--lhs=f32", f"--save-workload={saved}").status
        == 0
    )
    assert read_workload(saved).workload.entries == (WorkloadEntry(Matmul(8, 8, 8), 1, "sweep"),)


def test_kinds_and_patterns_select_from_a_workload(run):
    assert run("generator", *NULL, f"--workload={LOG}", "--operation-kind=batch_matmul").status == 0
    assert len(entries()) == 4
    assert (
        run("generator", *NULL, "--generated-dir=x", f"--workload={LOG}", "--dispatches=*x1000x*").status == 0
    )
    assert list(entries("x")) == ["matmul_1x1000x2048_f32t_f32n_f32t"]


def test_options_of_a_sweep_are_rejected(run):
    outcome = run("generator", *NULL, f"--workload={LOG}", "--problem-m=8", "--epilogue=relu")
    assert outcome.status == 2
    assert "--workload gives the operations, but --problem-m, --epilogue was given too" in outcome.err


def test_many_damaged_lines_are_summarized(run, tmp_path: Path):
    path = tmp_path / "log.yaml"
    path.write_text(LOG.read_text() + "nonsense\n" * 30)
    outcome = run("generator", *NULL, "--dry-run", f"--workload={path}")
    assert outcome.status == 1
    assert "14 more lines skipped; --verbose lists them all:" in outcome.err
    assert "14 x neither a call in a hipBLASLt log nor a command of MIOpenDriver" in outcome.err
    assert "log.yaml:45:" in run("generator", *NULL, "--dry-run", "--verbose", f"--workload={path}").err


def test_an_empty_log_is_an_error(run, tmp_path: Path):
    path = tmp_path / "log.yaml"
    path.write_text("")
    outcome = run("generator", *NULL, f"--workload={path}")
    assert outcome.status == 2
    assert "log.yaml has no operations: it is empty" in outcome.err
    assert not Path("generated").exists()


def test_the_manifest_keeps_counts_and_origins_of_the_last_run(run, tmp_path: Path):
    """Also if nothing else changed, and without losing what was compiled."""
    mine = tmp_path / "mine.yaml"
    for count in (3, 7):
        write_workload(Workload((WorkloadEntry(Matmul(8, 8, 8), count, f"run {count}"),)), mine)
        assert run("generator", *NULL, f"--workload={mine}").status == 0
        (entry,) = load_manifest(Tree(Path())).entries
        assert (entry.count, entry.origin) == (count, f"run {count}")
        assert run("compile").status == 0
    (entry,) = load_manifest(Tree(Path())).entries
    assert (entry.count, entry.modules != ()) == (7, True)
