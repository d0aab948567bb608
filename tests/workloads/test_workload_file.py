"""workload.yaml as users write it: what is wrong is said in a sentence, with the line and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import KINDS, LayerNorm, Matmul, operation_kind
from dispatch_profiler.workloads import (
    Workload,
    WorkloadEntry,
    append_workload,
    read_workload,
    write_workload,
)
from dispatch_profiler.workloads.operation_fields import FieldProblem, fields_of, operation_of
from dispatch_profiler.workloads.workload_file import entry_of

GOOD = "- operation: {kind: matmul, m: 5, n: 3, k: 4}"
MATMUL = {"kind": "matmul", "m": 5, "n": 3, "k": 4}


def problems(tmp_path: Path, *lines: str) -> list[tuple[int, str]]:
    """The lines and reasons of a file with one valid entry on line 2, and `lines` below it."""
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(["operations:", GOOD, *lines]) + "\n")
    found = read_workload(path)
    assert found.workload.operations == (Matmul(5, 3, 4),)
    return [(line.line, line.reason) for line in found.damaged]


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (
            ["- operation:", "    kind: matmul", "    m: 1", "    nn: 2", "    k: 3"],
            6,
            "operation: matmul has no field 'nn': did you mean 'n'? "
            "Available: m, n, k, types, lhs_layout, rhs_layout, epilogue",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 2}"],
            3,
            "operation: k is missing: matmul needs m, n, k",
        ),
        (
            ["# a comment", "", "- operation: {kind: matmul, m: 1, n: 2, k: 3}", "  cuont: 3"],
            6,
            "the entry has no field 'cuont': did you mean 'count'? Available: operation, count, origin",
        ),
        (
            ["- operation:", "    kind: matmul", "    m: '1'", "    n: 2", "    k: 3"],
            5,
            "operation: m: expected a whole number, but got the text '1'",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 2, k: 3}", "  count: three"],
            4,
            "count: expected a whole number from 1 to 1000000000000000, but got 'three'",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 2, k: 3}", "  origin: 3"],
            4,
            "origin: expected a string, but got 3",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 2, k: 3,", "              types: bf16}"],
            4,
            "operation: types: expected a list of types for lhs, rhs and the result, such as [bf16, bf16, f32], "
            "but got the text 'bf16'",
        ),
        (
            ["- count: 2", "  operation:", "    kind: layer_norm", "    rows: 1", "    size:"],
            7,
            "operation: size: expected a whole number, but got nothing",
        ),
        (
            ["- operation: {kind: conv2d, n: 1, h: 8, w: 8, c: 4, k: 4, r: 3, s: 3, padding: 1}"],
            3,
            "operation: padding: expected a list of whole numbers, such as [1, 1], but got 1",
        ),
        (
            ["- operation: {kind: conv2d, n: 1, h: 8, w: 8, c: 4, k: 4, r: 3, s: 3,", "    mode: backward}"],
            4,
            "operation: mode: expected one of forward, input_backward, weight_backward, bias_backward, "
            "but got the text 'backward'",
        ),
        (
            ["- operation: {kind: softmax, rows: 1, size: 8, scale: yes}"],
            3,
            "operation: scale: expected a number, but got True",
        ),
        (["- 3"], 3, "the entry: expected an object, but got 3: write"),
        (["- count: 3"], 3, "operation is missing: write"),
        (["- {kind: matmul, m: 1, n: 2, k: 3}"], 3, "the entry has no field 'kind': write '- operation: {kind:"),
        (["- operation: matmul"], 3, "operation: expected an object, but got 'matmul'; write {kind: matmul"),
        (["- operation: {m: 3}"], 3, "operation: kind is missing: available: matmul, "),
        (["- operation:", "    kind: matmull"], 4, "operation: unknown operation kind 'matmull': did you mean 'matmul'?"),
    ],
)  # fmt: skip
def test_a_typing_error_has_a_sentence_and_its_line(tmp_path: Path, lines: list[str], line: int, reason: str):
    ((found, text),) = problems(tmp_path, *lines)
    assert (found, text[: len(reason)]) == (line, reason)


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (
            ["- operation:", "    kind: matmul", "    n: 1", "    m: 0", "    k: 1"],
            6,
            "operation: matmul: every extent must be at least 1, but got m=0",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 1, k: 1,", "    types: [f16, f16, f17]}"],
            4,
            "operation: unknown element type 'f17' (did you mean 'f16'?",
        ),
        (
            ["- operation: {kind: matmul, m: 1, n: 1, k: 1,", "    epilogue: bias+rleu}"],
            4,
            "operation: unknown step 'rleu' of an epilogue (did you mean 'relu'?",
        ),
        (
            ["- operation: {kind: conv2d, n: 1, h: 8, w: 8, c: 4, k: 4, r: 3, s: 3,", "    padding: [1]}"],
            4,
            "operation: conv2d: padding must be two whole numbers",
        ),
        (
            ["- operation:", "    {kind: layer_norm, rows: 4, size: 8, affine: maybe}"],
            4,
            "operation: layer_norm: affine must be true, false, weight or bias, but got 'maybe'",
        ),
    ],
)
def test_a_rule_that_values_break_has_the_line_of_its_field(
    tmp_path: Path, lines: list[str], line: int, reason: str
):
    ((found, text),) = problems(tmp_path, *lines)
    assert (found, text[: len(reason)]) == (line, reason)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (f"operatoins:\n{GOOD}\n", "mine.yaml:1: unknown field 'operatoins'", "did you mean 'operations'?"),
        (f"operations:\n{GOOD}\nverison: 1\n", "mine.yaml:3: unknown field 'verison'", "did you mean 'version'?"),
        ("version: 1\noperations:\n  operation: 3\n", "mine.yaml:2 has no list `operations`", "write `operations:`"),
        (f"ops:\n{GOOD}\n", "mine.yaml:1: unknown field 'ops'", ""),
        (f"{GOOD}\n", "mine.yaml has no list `operations`", "write `operations:`"),
        ("- {operation: {kind: matmul}}\n", "mine.yaml has no list `operations`", "write `operations:`"),
        ("operations:\n- operation:\n    m: 1\n    m: 2\n", "mine.yaml: m is given twice (line 4, column 5)", ""),
        ("operations:\n-\toperation: 3\n", "mine.yaml is not valid YAML: ", ""),
    ],
)  # fmt: skip
def test_a_typing_error_outside_the_entries_is_an_error_with_its_line(
    tmp_path: Path, text: str, reason: str, hint: str
):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_workload(path)
    assert reason in str(raised.value).replace("\\", "/").replace(f"{tmp_path}/", "")
    assert raised.value.hint.startswith(hint)


def test_a_line_of_a_written_file_is_checked_alike(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    header = "format: dispatch_profiler workload\nversion: 1\noperations:\n"
    good = '- {"operation": {"kind": "matmul", "m": 5, "n": 3, "k": 4}}\n'
    typo, cut = good.replace('"k"', '"kk"'), good.replace("}}", "}")
    path.write_text(header + good + typo + cut)
    assert [(line.line, line.reason) for line in read_workload(path).damaged] == [
        (
            5,
            "operation: matmul has no field 'kk': did you mean 'k'? "
            "Available: m, n, k, types, lhs_layout, rhs_layout, epilogue",
        ),
        (6, "not JSON: Expecting ',' delimiter at ''"),
    ]


def test_a_file_without_a_valid_entry_says_where_the_format_is_shown(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("operations:\n- 3\n")
    with pytest.raises(UsageError, match=r"the first is mine\.yaml:2: the entry") as raised:
        read_workload(path)
    assert raised.value.hint == "correct the entries: docs/workloads.md shows the format"


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_of_a_kind_are_those_of_its_constructor(kind: str):
    needed = {name: 64 for name, has_default in fields_of(kind) if not has_default}
    found = operation_of({"kind": kind, **needed})
    assert found == operation_kind(kind)(**needed)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(), st.text(max_size=3), st.lists(st.integers(-1, 3)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1), st.lists(st.sampled_from(["f16", "f32", ""])),
)  # fmt: skip


@settings(max_examples=300, derandomize=True)
@given(st.sampled_from(list(KINDS)), st.data())
def test_no_value_of_any_type_raises_or_repeats_python_errors(kind: str, data: st.DataObject):
    """Each field of each kind, in turns."""
    fields = {name: 4 for name, has_default in fields_of(kind) if not has_default}
    name = data.draw(st.sampled_from([name for name, _ in fields_of(kind)]))
    found = operation_of({"kind": kind, **fields, name: data.draw(VALUES)})
    if isinstance(found, FieldProblem):
        assert "__init__" not in found.reason and "object has no" not in found.reason
        assert "argument" not in found.reason and "NoneType" not in found.reason


def test_the_modules_of_a_model_are_kept_and_joined(tmp_path: Path):
    """Written, read, merged; a file of before has none."""
    path = tmp_path / "captured.yaml"
    first = WorkloadEntry(Matmul(5, 3, 4), 2, "net.py:make", ("a.0", "a.1"))
    write_workload(Workload((first,)), path)
    append_workload(
        [WorkloadEntry(Matmul(5, 3, 4), 1, "x", ("a.1", "b")), WorkloadEntry(Matmul(5, 3, 5))], path
    )
    entries = read_workload(path).workload.entries
    assert [(each.count, each.modules) for each in entries] == [(3, ("a.0", "a.1", "b")), (1, ())]
    assert problems(tmp_path, f"{GOOD}", "  modules: conv")[0][1].startswith("modules: expected a list")


def test_entries_of_tuning_files_are_read_alike():
    assert entry_of({"operation": MATMUL, "count": 2}, "mine").count == 2
    assert entry_of({"operation": {"kind": "layer_norm", "rows": 4, "size": 8}}, "").operation == LayerNorm(
        4, 8
    )
    with pytest.raises(UsageError, match="operation: matmul has no field 'x'"):
        entry_of({"operation": {**MATMUL, "x": 1}}, "")
