"""Every file that is read, damaged in every way, and YAML from outside: one sentence, or what can be read of it."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildRequest, NullCompiler, load_rules
from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import (
    Artifact,
    Dispatch,
    DispatchEntry,
    ModuleEntry,
    OperationEntry,
    State,
    Tree,
    add_generated,
    load_manifest,
    note_result,
    unpacked,
    write_bundle,
)
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.files.yaml_files import MOST_BYTES, load_yaml, parse_yaml
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.entry_rows import to_text
from dispatch_profiler.operations import Distribution, Matmul
from dispatch_profiler.profiler.compare.pairing import CompareOptions, FailOn, compare_records
from dispatch_profiler.profiler.compare.render import FORMATS
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks, PeaksFile
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, stored
from dispatch_profiler.profiler.records.record_file import read_records, to_line
from dispatch_profiler.profiler.report.console import table
from dispatch_profiler.profiler.report.outputs import CsvReport
from dispatch_profiler.profiler.report.run_report import junit, markdown
from dispatch_profiler.profiler.verification.verify import References
from dispatch_profiler.runtime import NullDevice

OPERATION = Matmul(4, 6, 8)
DISPATCHES = tuple(Dispatch(OPERATION, c) for c in (Default(), CpuTiles((2, 2), (1, 2, 4)), Flow("ukernels")))
PEAKS = Peaks({"f32": 1e11, "f64": 1e10}, 1e10)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
DEEP: list[Any] = []
for _ in range(50):
    DEEP = [DEEP]

ODD = st.sampled_from(
    [
        None, True, 0, -5, 10**400, -(10**400), 1e308, float("nan"), float("inf"), "", "x" * 300, "\x1b[2J\ud800\x00",
        "../../etc/passwd", [], [[]], {}, {"a": 1}, DEEP, [None], ["x"], [1, "x", None],
    ]
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a JSON document."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def damaged_json(draw: st.DrawFn, document: Any) -> Any:
    """`document` with a value replaced or removed, at any depth."""
    found = copy.deepcopy(document)
    container, key = draw(st.sampled_from(list(places(found))))
    if draw(st.booleans()):
        container[key] = draw(ODD)
    else:
        del container[key]
    return found


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` cut off, with bytes exchanged, or something else altogether."""
    kind = draw(st.sampled_from(["cut", "exchanged", "foreign", "deep"]))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if kind == "exchanged":
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + 1 :]
    return draw(st.binary(max_size=200)) if kind == "foreign" else b"[" * 100_000


def damaged(document: Any, write: Callable[[Any], bytes]) -> st.SearchStrategy[bytes]:
    """Bytes of a file that `write` makes of `document`, damaged in its values or in its bytes."""
    return st.one_of(damaged_json(document).map(write), damaged_bytes(write(document)))


def one_sentence(read: Callable[[], object]) -> object:
    """What `read` returns; or its error, which is one line. No other exception passes."""
    try:
        return read()
    except DispatchProfilerError as error:
        assert "\n" not in error.message and error.exit_status == 2
        return None


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- records ---------------------------------------------------------------------------------------

ROWS = [
    json.loads(
        to_line(
            stored(
                Record(
                    dispatch,
                    Provenance("local-task", "llvm-cpu", "compiler 1", 7, module_key="1", flags=("-O2",)),
                    Verdict.SUCCESS,
                    "",
                    Measurement(
                        (0.3, 0.1, 0.2, 0.3, 0.2, 0.25), 64, places=(0, 1, 2, 3, 4, 5), batches=(1,) * 6
                    ),
                    limit_ms=0.05,
                    peaks=PEAKS,
                ),
                {"card": "x"},
            )
        )
    )
    for dispatch in DISPATCHES
]


def lines(rows: list[Any]) -> bytes:
    return b"".join(json_bytes(row) + b"\n" for row in rows)


@QUICK
@given(data=damaged(ROWS, lines))
def test_a_record_file(tmp_path: Path, data: bytes):
    """What is read of it can be written and compared in every form."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    records = one_sentence(lambda: read_records(path))
    if records:
        table(records)
        markdown(records)
        junit(records)
        with CsvReport(tmp_path / "a.csv", earlier=records):
            pass
        comparison = one_sentence(lambda: compare_records(records, records, CompareOptions()))
        for write in FORMATS.values() if comparison else ():
            write(comparison, FailOn())


LIBRARY = json.loads(
    to_text(
        Entry(
            Dispatch(Matmul(4 + extra, 6, 8), DISPATCHES[1].configuration),
            Estimate(2.0, 1.0, 3.0),
            Estimate(1.5, 1.2, float("inf")),
            Provenance("local-task", "llvm-cpu", "compiler 1", 7, module_key="1", flags=("-O2",)),
        )
        for extra in range(2)
    )
)


@QUICK
@given(data=damaged(LIBRARY, json_bytes))
def test_a_library(tmp_path: Path, data: bytes):
    """What is read of it can be written and read again."""
    path = tmp_path / "library.json"
    path.write_bytes(data)
    library = one_sentence(lambda: Library(Library.load(path).entries))
    if isinstance(library, Library):
        library.save(path)
        assert set(Library.load(path).entries) == set(library.entries)


# -- a tree ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree of one operation, not compiled."""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    files = Artifact("0" * 64, 3)
    entry = OperationEntry(OPERATION, "null", "a", tuple(DispatchEntry(d) for d in DISPATCHES))
    add_generated(tree, [entry])
    note_result(
        tree,
        OperationEntry(
            OPERATION, "null", "a", tuple(DispatchEntry(d, State.COMPILED) for d in DISPATCHES),
            (ModuleEntry("", "key", 100, "IREE", "null", files, files, ("-O2",)),),
        ),
    )  # fmt: skip
    load_manifest(tree)
    return tree


def use(tree: Tree) -> None:
    """As a command does."""
    manifest = load_manifest(tree)
    for entry, d in manifest.dispatches():
        module = entry.module_of(d.dispatch)
        assert module is None or 1 <= module.repeat <= 10**6
        assert d.dispatch.name
        assert tree.folder in tree.vmfb(entry.operation, module.name if module else "", "verify").parents
    _ = manifest.target


@QUICK
@given(data=st.data())
def test_a_manifest(made: Tree, data: st.DataObject):
    whole = made.manifest.read_bytes()
    try:
        made.manifest.write_bytes(data.draw(damaged(json.loads(whole), json_bytes)))
        one_sentence(lambda: use(made))
    finally:
        made.manifest.write_bytes(whole)


@QUICK
@given(data=st.data())
def test_a_journal(made: Tree, data: st.DataObject):
    """Whatever it holds, the manifest is read."""
    whole = made.journal.read_bytes()
    try:
        made.journal.write_bytes(data.draw(damaged(json.loads(whole), json_bytes)))
        load_manifest(made)
    finally:
        made.journal.write_bytes(whole)


@QUICK
@given(data=st.data())
def test_a_bundle(tmp_path: Path, data: st.DataObject):
    """Its list of contents; test_bundles has its bytes."""
    path, tree = tmp_path / "a.zip", Tree(tmp_path / "tree")
    if not tree.manifest.exists():
        add_generated(tree, [OperationEntry(OPERATION, "null", "a", (DispatchEntry(DISPATCHES[0]),))])
    manifest = load_manifest(tree)
    write_bundle(path, manifest, manifest.dispatches())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["bundle.json"] = data.draw(damaged(json.loads(members["bundle.json"]), json_bytes))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)

    def read() -> None:
        with unpacked(path) as (found, _):
            use(found.tree)

    one_sentence(read)


# -- what is kept ----------------------------------------------------------------------------------


@QUICK
@given(
    data=damaged(
        {"flops_per_second": {"f32": 1e11, "f64": 1e10}, "bytes_per_second": 1e10, "source": ""}, json_bytes
    )
)
def test_a_file_of_peaks(tmp_path: Path, data: bytes):
    """It is measured again, or it is above 0 and finite."""
    kept = PeaksFile(tmp_path, "key", lambda: PEAKS)
    kept.again()
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(data)
    for rate in (*kept.get().flops_per_second.values(), kept.get().bytes_per_second):
        assert 0.0 < rate < float("inf")


def test_a_file_of_peaks_that_is_a_pipe(tmp_path: Path):
    kept = PeaksFile(tmp_path, "key", lambda: PEAKS)
    kept.again()
    (path,) = tmp_path.glob("*.json")
    path.unlink()
    os.mkfifo(path)
    assert kept.get() == PEAKS


def read_again(folder: Path) -> np.ndarray:
    """The reference that is kept in `folder`, or computed again."""
    (found,) = References(folder, 7).get(OPERATION, Distribution.REALS)
    return found.expected


def kept_reference(folder: Path) -> tuple[Path, np.ndarray]:
    """A file of `folder` that keeps a reference, and the reference."""
    right, path = read_again(folder), References(folder, 7).path(OPERATION, Distribution.REALS)
    assert path is not None
    return path, right


@QUICK
@given(data=st.data())
def test_a_kept_reference(tmp_path: Path, data: st.DataObject):
    """It is computed again."""
    path, right = kept_reference(tmp_path)
    path.write_bytes(data.draw(damaged_bytes(path.read_bytes())))
    assert np.array_equal(read_again(tmp_path), right)


def test_a_reference_without_its_arrays(tmp_path: Path):
    path, right = kept_reference(tmp_path)
    buffer = io.BytesIO()
    np.savez(buffer, other=np.zeros(3))
    path.write_bytes(buffer.getvalue())
    assert np.array_equal(read_again(tmp_path), right)


def test_a_reference_that_expands_is_not_unpacked(tmp_path: Path, monkeypatch):
    """What is written is not compressed, so that a file is as large as what it holds."""
    path, right = kept_reference(tmp_path)
    with np.load(path) as stored:
        np.savez_compressed(path, **stored)
    loaded = []
    monkeypatch.setattr(np, "load", lambda *_, **__: loaded.append(1))

    assert np.array_equal(read_again(tmp_path), right)
    assert not loaded


def test_a_reference_is_no_larger_than_its_operation_allows(tmp_path: Path):
    path, right = kept_reference(tmp_path)
    with path.open("ab") as file:
        file.truncate(2**40)  # sparse

    assert np.array_equal(read_again(tmp_path), right)


# -- the null device -------------------------------------------------------------------------------


@QUICK
@given(
    data=damaged({"*_peel": {"not_compiled": "no"}, "*": {"time_ms": 0.25, "not_applied": True}}, json_bytes)
)
def test_faults_of_the_null_target(tmp_path: Path, data: bytes):
    path = tmp_path / "faults.yaml"
    path.write_bytes(data)
    rules = one_sentence(lambda: load_rules(path))
    if isinstance(rules, tuple):
        built = NullCompiler(rules).build(BuildRequest("", DISPATCHES[:1], (), 10))
        assert len(built.outcomes) == 1


VMFB = NullCompiler().build(BuildRequest("", DISPATCHES[:1], (), 10)).verify


@QUICK
@given(data=damaged(json.loads(VMFB), json_bytes))
def test_a_vmfb_of_the_null_target(data: bytes):
    """Whatever it holds: an error of the device, or a call."""
    device = NullDevice()
    buffers = [device.put(np.zeros(each.shape, each.type.dtype), each.type) for each in OPERATION.operands]
    try:
        call = device.load(data).bind(DISPATCHES[0].name, buffers)
    except DispatchProfilerError as error:
        assert "\n" not in error.message
    else:
        assert call.now() >= 0.0


INTEGERS = st.integers(-(2**63), 2**63 - 1)
#: PyYAML writes the string 1e5 without quotes, which is a number in JSON.
TEXTS = st.text(max_size=20).filter(lambda text: not re.fullmatch(r"[-+.0-9]+[eE][-+0-9]+", text))
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXTS
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


@pytest.mark.slow
@given(DATA)
def test_plain_data_is_read_as_pyyaml_reads_it(data):
    text = yaml.safe_dump(data)
    assert parse_yaml(text.encode(), "f") == yaml.safe_load(text)


def test_what_is_no_number_of_python_is_read_as_yaml_says():
    assert math.isnan(parse_yaml(b"[.nan, 0x10, 1_000]", "f")[0])
    assert parse_yaml(b"[.inf, 0x10, 1_000]", "f") == [math.inf, 16, 1000]


REJECTED = {
    "a: &x [1]\nb: *x": "aliases such as *x are not supported: write the value out (line 2, column 4)",
    "a: &x {b: 1}\nc: {<<: *x}": "aliases such as *x are not supported: write the value out (line 2, column 9)",
    "[" * 21: "more than 20 levels of nesting (line 1, column 21)",
    "- " * 500_000: "more than 20 levels of nesting (line 1, column 41)",
    "{a: " * 250_000: "more than 20 levels of nesting (line 1, column 78)",
    f"a: {2**63}": "an integer has more than 64 bits (line 1, column 4)",
    "a: 0x" + "f" * 9000: "an integer has more than 64 bits (line 1, column 4)",
    "a: 1" + ":1" * 4000: "an integer has more than 64 bits (line 1, column 4)",
    "a: 1" + "0" * 20_000: "a value has more than 10000 characters (line 1, column 4)",
    "a: 0b_": "'0b_' is not a valid int (line 1, column 4)",
    "a: !!bool maybe": "'maybe' is not a valid bool (line 1, column 4)",
    'a: !!int ""': "'' is not a valid int (line 1, column 4)",
    "a: 2026-99-99": "timestamp values are not supported (line 1, column 4)",
    "a: !!python/object:os.system x": "os.system values are not supported (line 1, column 4)",
    "a: !!binary aGk=": "binary values are not supported (line 1, column 4)",
}
MALFORMED = {
    "{? [a] : b}": "found unhashable key (line 1, column 4)",
    "a: b: c": "mapping values are not allowed here (line 1, column 5)",
    "--- a\n--- b": "but found another document (line 2, column 1)",
    "a: \x07": 'unacceptable character #x0007: special characters are not allowed in "<unicode string>", position 3',
}


@pytest.mark.parametrize(("text", "reason"), REJECTED.items(), ids=[text[:20] for text in REJECTED])
def test_what_is_not_plain_bounded_data_is_rejected_with_its_place(text, reason):
    with pytest.raises(UsageError) as caught:
        parse_yaml(text.encode(), "mine.yaml")
    assert str(caught.value) == f"mine.yaml: {reason}"


@pytest.mark.parametrize(("text", "reason"), MALFORMED.items(), ids=[text[:20] for text in MALFORMED])
def test_what_is_not_yaml_is_rejected_with_its_place(text, reason):
    with pytest.raises(UsageError) as caught:
        parse_yaml(text.encode(), "mine.yaml")
    assert str(caught.value) == f"mine.yaml is not valid YAML: {reason}"


def test_a_file_has_a_limited_number_of_values():
    """The limit itself is allowed."""
    assert parse_yaml(b"[1, 2, 3, 4]", "f", most_values=5) == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="more than 5 values"):
        parse_yaml(b"[1, 2, 3, 4, 5]", "f", most_values=5)


def test_text_that_is_not_utf_8_is_rejected_with_its_byte():
    with pytest.raises(UsageError, match=r"^f is not UTF-8 text: byte 3 is 0xff$"):
        parse_yaml(b"a: \xff", "f")


@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("[]{}:,-?&*!|>%@'\"#\n \t0a.<="), max_size=60).map(str.encode)
)
def test_any_bytes_are_data_or_one_sentence(data):
    try:
        parse_yaml(data, "mine.yaml")
    except UsageError as error:
        assert re.match(r"mine\.yaml( is not \S.*)?: |mine\.yaml is not UTF-8", str(error))
        assert "\n" not in str(error)


def test_a_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("[1, {a: b}]")
    assert load_yaml(path) == [1, {"a": "b"}]


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_and_what_is_too_large_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (MOST_BYTES + 1))
    for name, reason in (
        ("pipe", "a named pipe"),
        (".", "a directory"),
        ("large", "larger than 1048576 bytes"),
    ):
        with pytest.raises(UsageError, match=f"cannot read .*: it is {reason}"):
            load_yaml(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-05", 1e-05), ("-2E+3", -2e3), ("1e5", 1e5), ("1.5e3", 1500.0)]
)
def test_numbers_are_those_of_json(text: str, value: float):
    """Python writes 0.00001 as 1e-05, which YAML 1.1 reads as a string."""
    found = parse_yaml(f"x: {text}".encode(), "x.yaml")["x"]
    assert (type(found), found) == (float, value)


@pytest.mark.parametrize("text", ["1e", "e5", "1e-5x", "0x1e5z", "1 e5"])
def test_what_only_resembles_such_a_number_is_text(text: str):
    assert parse_yaml(f"x: {text}".encode(), "x.yaml")["x"] == text
