"""Files of every form, and workloads: each operation once, with how often it runs and where it was read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dispatch_profiler.boo.driver
from dispatch_profiler.errors import UsageError, WorkloadError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.workloads import Workload, WorkloadEntry, merged, read_workload, write_workload

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "benchmarks" / "workloads"
DAMAGED = Path(__file__).parent / "gemm_log_damaged.yaml"
BF16 = ElementTypes("bf16", "bf16", "bf16")
F16 = ElementTypes("f16", "f16", "f16")
LINE = (
    "- {function: matmul, M: 3, N: 5, K: 4, transA: N, transB: N, batch_count: 1, a_type: f32_r, b_type: f32_r, "
    "c_type: f32_r, d_type: f32_r, compute_type: c_f32_r, call_count: 2}"
)
BENCH = "hipblaslt-bench --api_method c -m 3 -n 5 -k 4 --alpha 1.000000 --beta 0.000000 --transA N --transB N"
GEMM = Matmul(5, 3, 4)


@pytest.fixture
def file(tmp_path: Path):
    """A function that writes a file with these lines."""

    def write(*lines: str, name: str = "log.yaml") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def counts(path: Path) -> dict[Operation, int]:
    return {entry.operation: entry.count for entry in read_workload(path).workload.entries}


# -- the sample logs -------------------------------------------------------------------------------


def test_the_sample_gemm_log():
    """15 lines: two of one problem, and four with a bias of f32 for a result of 16 bits."""
    found = read_workload(SAMPLES / "gemm_log.yaml")
    assert (found.calls, len(found.unsupported), len(found.damaged)) == (11, 4, 0)
    bias, gelu = Epilogue.parse("bias"), Epilogue.parse("bias+gelu_tanh")
    f32 = ElementTypes()
    assert {entry.operation: entry.count for entry in found.workload.entries} == {
        Matmul(128, 768, 768, f32, "t", "n", bias): 48,
        Matmul(128, 3072, 768, f32, "t", "n", gelu): 12,
        Matmul(128, 768, 3072, f32, "t", "n", bias): 12,
        BatchMatmul(12, 128, 128, 64, f32, "t", "n"): 12,
        BatchMatmul(12, 128, 64, 128, f32, "t", "t"): 12,
        BatchMatmul(12, 384, 384, 64, BF16, "t", "n"): 12,
        BatchMatmul(12, 384, 64, 384, BF16, "t", "t"): 12,
        Matmul(64, 512, 512, f32, "t", "t"): 450,
        Matmul(1, 1000, 2048, f32, "t", "n"): 7,
        Matmul(61, 127, 93, f32, "n", "t"): 2,
    }
    assert {line.reason for line in found.unsupported} == {
        f"a bias of type f32_r: only a bias of the result's type {name} is supported"
        for name in ("bf16_r", "f16_r")
    }


def test_the_sample_log_of_full_size():
    found = counts(SAMPLES / "gemm_log_full_size.yaml")
    assert len(found) == 7
    assert sum(found.values()) == 1 + 1 + 64 + 64 + 32 + 64 + 1
    assert found[Matmul(2048, 14336, 4096, BF16, "t", "n")] == 64


def test_the_damaged_sample_log():
    found = read_workload(DAMAGED)
    assert [str(line) for line in found.skipped] == [
        "gemm_log_damaged.yaml:5: an empty field after a_type",
        "gemm_log_damaged.yaml:6: M must be at least 1, but got -5",
        "gemm_log_damaged.yaml:7: transA: expected N or T, but got 'Q'",
        "gemm_log_damaged.yaml:8: neither a call in a hipBLASLt log nor a command of MIOpenDriver",
        "gemm_log_damaged.yaml:9: not supported: function 'layernorm': only matmul is supported",
        "gemm_log_damaged.yaml:10: not supported: a_type=f8_fnuz_r: fnuz types are not supported",
        "gemm_log_damaged.yaml:11: the line ends after rotating, without a closing brace",
    ]
    assert [entry.count for entry in found.workload.entries] == [48, 12, 12, 12, 9]
    assert found.workload.entries[-1] == WorkloadEntry(Matmul(80, 96, 64), 9, "gemm_log_damaged.yaml:12")


@pytest.mark.parametrize(
    ("name", "lines", "operations"), [("miopen_commands.txt", 42, 42), ("resnet50_f32.txt", 55, 23)]
)
def test_the_sample_commands(name: str, lines: int, operations: int):
    """All are convolutions with FHWC filters; each line runs once."""
    found = read_workload(SAMPLES / name)
    assert (found.calls, len(found.workload.entries), found.skipped) == (lines, operations, ())
    assert sum(entry.count for entry in found.workload.entries) == lines
    distinct = {line for line in (SAMPLES / name).read_text().splitlines() if line and line[0] != "#"}
    assert len(distinct) == operations
    assert all(entry.operation.layout.split("_")[1][0] == "f" for entry in found.workload.entries)


def test_the_sample_commands_of_the_package_are_a_workload_of_every_kind_of_command():
    found = read_workload(Path(dispatch_profiler.boo.driver.__file__).with_name("sample_commands.txt"))
    assert found.skipped == () and found.calls == len(found.workload.entries)
    assert {each.operation.kind for each in found.workload.entries} == {
        *("conv2d", "conv3d", "bias_backward", "matmul", "softmax", "attention"),
        *("layer_norm", "layer_norm_input_backward", "layer_norm_weight_backward"),
    }


def test_a_command_that_runs_several_times_is_counted():
    assert (
        counts(SAMPLES / "resnet50_f32.txt")[
            Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
        ]
        == 3
    )


# -- forms -----------------------------------------------------------------------------------------


def test_bench_lines_count_once_each(file):
    types = " ".join(f"--{name}_type f16_r" for name in ("a", "b", "c", "d", "bias"))
    line = f"{BENCH} {types} --compute_type f32_r --bias_vector --activation_type gelu --splitk 0"
    expected = Matmul(5, 3, 4, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("bias+gelu_tanh"))
    assert counts(file(line, f"/opt/rocm/bin/{line}")) == {expected: 2}


def test_bench_lines_have_the_defaults_of_the_program(file):
    assert counts(file("hipblaslt-bench --sizem 3 --sizen=5 -k 4 --beta -0.0 -r f16_r")) == {
        Matmul(5, 3, 4, ElementTypes("f16", "f16", "f16")): 1
    }


def test_bench_lines_of_a_log_with_counts_are_left_out(file):
    found = read_workload(file(BENCH, BENCH, LINE))
    assert [entry.count for entry in found.workload.entries] == [2]
    assert found.notes == (
        "log.yaml: 2 hipblaslt-bench lines left out, because the log counts the same calls in its `call_count`s",
    )


@pytest.mark.parametrize(
    "header",
    [
        "transA,transB,M,N,K,a_type,b_type,d_type,compute_type,call_count",
        "[0]:transa,transb, m, n, k,a_type,b_type,d_type,compute_type,call_count",
    ],
)
def test_csv(file, header: str):
    found = read_workload(
        file(
            header,
            "T,N,3,5,4,f32_r,f32_r,f32_r,f32_r,7",
            "  N,N,3,5,4",
            "",
            "T,N,x,5,4,f32_r,f32_r,f32_r,f32_r,1",
        )
    )
    assert found.workload.entries == (WorkloadEntry(Matmul(5, 3, 4, rhs_layout="n"), 7, "log.yaml:2"),)
    assert [line.reason for line in found.damaged] == [
        "the row has 5 values, but the header has 10 columns",
        "M: expected a whole number, but got 'x'",
    ]


def test_a_log_with_solutions_is_read_alike(file):
    """Mask 128 adds the kernel of each call."""
    extra = ", solution_index: 17, solution_Name: Cijk_Alik_Bljk_S_B_MT32x32x16, kernel_name: Cijk_1.2-3}"
    assert counts(file(LINE.replace("}", extra))) == {GEMM: 2}


def test_comments_blank_lines_and_windows_line_ends_are_ignored(file):
    assert counts(file("# a comment", "", "---", LINE + "\r")) == {GEMM: 2}


def test_equal_problems_of_several_files_are_merged(file):
    one, two = file(LINE, name="one.yaml"), file(LINE, LINE, BENCH.replace("-m 3", "-m 8"), name="two.txt")
    found = read_workload(one, two)
    assert found.workload.entries == (WorkloadEntry(GEMM, 6, "one.yaml:1"),)
    assert found.calls == 3


def test_matrices_with_gaps_are_noted(file):
    found = read_workload(file(LINE.replace("K: 4", "K: 4, lda: 30")))
    assert found.workload.operations == (GEMM,)
    assert "1 call with matrices that are parts of larger ones" in found.notes[0]


def test_factors_that_are_left_out_are_noted(file):
    found = read_workload(file(LINE.replace("K: 4", "K: 4, scaleA: 1"), LINE))
    assert found.workload.entries == (WorkloadEntry(GEMM, 4, "log.yaml:1"),)
    assert found.notes == (
        "log.yaml: 1 call with a factor for A or B (scaleA, scaleB): their operations leave it out",
    )


# -- invalid files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
def test_logs_of_windows_are_read_in_their_encoding(tmp_path: Path, encoding: str):
    """PowerShell's `>` writes UTF-16."""
    path = tmp_path / "log.txt"
    path.write_bytes(f"{LINE}\r\n{LINE}\r\n".encode(encoding))
    assert counts(path) == {GEMM: 4}


def test_counts_of_uniq_are_multiplied(file):
    found = counts(file(f"      3 {LINE}", "     12 conv -n 1 -c 1", f"4 {BENCH}", "      9 # a comment"))
    assert list(found.values()) == [6, 12]
    assert counts(file(f"   7 {BENCH}", f"  1\t{BENCH}")) == {Matmul(5, 3, 4, F16): 8}


def test_lines_of_bench_that_a_log_with_counts_repeats_are_left_out_as_often(file):
    found = read_workload(file(f"   7 {BENCH}", f"   2 {LINE}"))
    assert found.notes[0].startswith("log.yaml: 7 hipblaslt-bench lines left out")


@pytest.mark.parametrize("lines", [(), ("", "# only a comment")])
def test_an_empty_log_is_an_error_that_says_how_to_log(file, lines: tuple[str, ...]):
    with pytest.raises(WorkloadError, match=r"log\.yaml has no operations: it is empty") as raised:
        read_workload(file(*lines))
    assert "HIPBLASLT_LOG_MASK=64" in raised.value.hint


def test_a_log_without_any_valid_line_is_an_error_with_the_first_reason(file):
    with pytest.raises(
        WorkloadError, match=r"2 lines skipped; the first is log\.yaml:1: the line ends after M"
    ):
        read_workload(file("- {M: 1, ", "nonsense"))


def test_a_log_of_unsupported_lines_has_a_hint_that_fits(file):
    odd = LINE.replace("K: 4", "K: 4, use_e: 1")
    with pytest.raises(
        WorkloadError, match=r"3 lines skipped, not supported; the first is log\.yaml:1"
    ) as raised:
        read_workload(file(odd, LINE.replace("K: 4", "K: 4, gradient: 1"), odd))
    assert "2 of 3 have the reason 'use_e=1: an epilogue has no second result'" in raised.value.hint
    assert "HIPBLASLT_LOG_MASK" not in raised.value.hint


def test_a_log_of_searches_alone_says_to_log_the_calls(file):
    search = "MIOpen(HIP): Command [LogCmdFindConvolution] ./bin/MIOpenDriver conv -n 1"
    with pytest.raises(WorkloadError, match="not supported") as raised:
        read_workload(file(search, search))
    assert raised.value.hint.startswith("log the calls too")


def test_bytes_that_are_not_text_damage_only_their_line(file, tmp_path: Path):
    path = tmp_path / "log.yaml"
    path.write_bytes(LINE.encode() + b"\n\xff\x00" + LINE.encode() + b"\n- {\xff: 1}\n")
    found = read_workload(path)
    assert (found.calls, [line.line for line in found.damaged]) == (1, [2, 3])


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            read_workload(path)


# -- workload.yaml ---------------------------------------------------------------------------------

OPERATIONS = (
    GEMM,
    BatchMatmul(2, 3, 4, 5, BF16, "n", "n", Epilogue.parse("clamp(-1,1)")),
    Conv2d(
        1,
        8,
        8,
        4,
        4,
        3,
        3,
        padding=(1, 1),
        padding_after=(0, 1),
        layout="nhwc_fhwc_nhwc",
        mode="input_backward",
    ),
    LayerNorm(4, 8, "f16", 1e-05),
)
ENTRIES = st.lists(
    st.builds(
        WorkloadEntry, st.sampled_from(OPERATIONS), st.integers(1, 10**12), st.text(max_size=20).filter(bool)
    )
)


@pytest.mark.slow
@settings(max_examples=50, derandomize=True)
@given(ENTRIES.filter(bool))
def test_a_workload_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, entries):
    path = tmp_path_factory.getbasetemp() / "workload.yaml"
    workload = merged(entries)
    write_workload(workload, path)
    assert read_workload(path).workload == workload


def test_a_written_workload_is_yaml(tmp_path: Path):
    path = tmp_path / "workload.yaml"
    write_workload(Workload((WorkloadEntry(GEMM, 3, 'a "log":1\n'),)), path)
    data = yaml.safe_load(path.read_text())
    assert data == {
        "format": "dispatch_profiler workload",
        "version": 1,
        "operations": [{"operation": GEMM.to_dict(), "count": 3, "origin": 'a "log":1\n'}],
    }


def test_a_workload_of_a_user(file):
    """Fields with defaults may be left out, and any YAML is read."""
    path = file(
        "# mine",
        "operations:",
        "  - operation: {kind: matmul, m: 5, n: 3, k: 4}",
        "    count: 3",
        "  - operation:",
        "      kind: layer_norm",
        "      rows: 4",
        "      size: 8",
    )
    assert read_workload(path).workload.entries == (
        WorkloadEntry(GEMM, 3, "log.yaml:3"),
        WorkloadEntry(LayerNorm(4, 8), 1, "log.yaml:5"),
    )


def test_a_damaged_entry_affects_no_other(tmp_path: Path):
    path = tmp_path / "workload.yaml"
    write_workload(Workload((WorkloadEntry(GEMM), WorkloadEntry(OPERATIONS[1]))), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], '- {"operation": {"kind": "matmul", "m"', *lines[4:]]))
    found = read_workload(path)
    assert found.workload.operations == OPERATIONS[:2]
    assert [(line.line, line.reason[:8]) for line in found.damaged] == [(5, "not JSON")]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("format: dispatch_profiler workload", "operations: 3"), r"log\.yaml:2 has no list `operations`"),
        (("version: 9", "operations: []"), "version 9"),
        (("format: other", "operations: []"), "format 'other'"),
        (("operations: []",), "it is empty"),
        (("operations: [",), "is not valid YAML"),
    ],
)
def test_an_invalid_workload_file_is_an_error(file, lines: tuple[str, ...], reason: str):
    with pytest.raises(UsageError, match=reason):
        read_workload(file(*lines))


def test_a_large_workload_is_read_only_as_it_was_written(file):
    path = file("operations:", *["- {operation: {kind: matmul, m: 5, n: 3, k: 4}}"] * 30_000)
    with pytest.raises(WorkloadError, match="is larger than 1048576 characters"):
        read_workload(path)


SEVERAL = st.builds(
    WorkloadEntry, st.integers(1, 4).map(lambda m: Matmul(m, 1, 1)), st.integers(1, 9), st.sampled_from("abc")
)


def test_equal_operations_are_one_entry_with_their_counts_added():
    """The first place is kept, in the order in which operations were first read."""
    one, two = Matmul(1, 1, 1), Matmul(2, 2, 2)
    found = merged(
        [
            WorkloadEntry(one, 3, "line 1"),
            WorkloadEntry(two, 1, "line 2"),
            WorkloadEntry(Matmul(1, 1, 1), 4, "line 3"),
        ]
    )
    assert Workload((WorkloadEntry(one, 7, "line 1"), WorkloadEntry(two, 1, "line 2"))) == found
    assert (one, two) == found.operations


def test_nothing_is_an_empty_workload():
    """Of no operations."""
    assert merged([]).operations == ()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(SEVERAL))
def test_no_count_is_lost(entries):
    """Against a Counter, which keeps the order too."""
    counts = Counter()
    for entry in entries:
        counts[entry.operation] += entry.count
    assert list(counts.items()) == [(entry.operation, entry.count) for entry in merged(entries).entries]


def test_an_entry_runs_once_unless_told_otherwise():
    """And comes from nowhere in particular."""
    entry = WorkloadEntry(Matmul(1, 1, 1))
    assert (entry.count, entry.origin) == (1, "")
