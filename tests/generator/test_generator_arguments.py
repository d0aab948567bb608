"""Arguments of `generator.py`: those of a dispatch make it again, workloads are read, and nonsense is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from epilogue_helpers import SEQUENCES, SIMPLE, STEP_TEXTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import OperationError
from dispatch_profiler.generator.cli import main
from dispatch_profiler.operations import (
    ELEMENT_TYPES,
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)
from dispatch_profiler.workloads import Workload, WorkloadEntry, read_workload, write_workload

FEW = settings(
    derandomize=True,
    database=None,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


def possible_types() -> Iterator[ElementTypes]:
    for triple in itertools.product(ELEMENT_TYPES, repeat=3):
        try:
            yield ElementTypes(*triple)
        except OperationError:
            continue


def pasted(kind: str, arguments: dict[str, str]) -> list[str]:
    """As a user would paste the report's lines."""
    return [f"--op-kind={kind}", *(f"--{name}={value}" for name, value in arguments.items())]


def rebuilt(operation: Operation, folder: Path) -> list[Dispatch]:
    """What `generator.py` makes of the arguments of `operation` with its default configuration."""
    from dispatch_profiler.configurations import Default

    arguments = pasted(operation.kind, Dispatch(operation, Default()).arguments())
    tree = Tree(folder)
    tree.manifest.unlink(missing_ok=True)
    assert main([f"--generated-dir={folder}", "--default-config=only", "--target=null", *arguments]) == 0
    return [d.dispatch for _, d in load_manifest(tree).dispatches()]


types = st.sampled_from(list(possible_types()))
same_types = st.sampled_from([each for each in possible_types() if not each.is_mixed])
epilogues = st.sampled_from([*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES))])
extents = st.integers(1, 5000)
layouts = st.sampled_from("tn")
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
margins = st.tuples(st.integers(0, 3), st.integers(0, 3))


def built(make, *values: object, **named: object) -> Operation:
    """The operation, if it is one."""
    try:
        return make(*values, **named)
    except OperationError:
        assume(False)
        raise


@FEW
@given(extents, extents, extents, types, layouts, layouts, epilogues)
def test_a_matmul_is_rebuilt(m, n, k, types, lhs, rhs, epilogue):
    """Exactly the same, and nothing beside it."""
    operation = built(Matmul, m, n, k, types, lhs, rhs, epilogue)
    assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


@FEW
@given(extents, extents, extents, extents, types, layouts, layouts, epilogues)
def test_a_batch_matmul_is_rebuilt(b, m, n, k, types, lhs, rhs, epilogue):
    """A batch of one too."""
    for batch in {b, 1}:
        operation = built(BatchMatmul, batch, m, n, k, types, lhs, rhs, epilogue)
        assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


@FEW
@given(
    st.tuples(*[st.integers(1, 40)] * 3), st.tuples(*[st.integers(1, 4)] * 5), pairs, margins, pairs,
    st.sampled_from(["nhwc", "nchw"]), same_types, epilogues,
)  # fmt: skip
def test_a_convolution_is_rebuilt(image, small, stride, padding, dilation, layout, types, epilogue):
    """Dense, grouped and depthwise, in both layouts."""
    c, k, r, s, groups = small
    shape = (*image, c * groups, k * groups, r, s)
    operation = built(Conv2d, *shape, stride, padding, dilation, groups, layout, types, epilogue)
    assert [d.operation for d in rebuilt(operation, Path("x"))] == [operation]


@pytest.mark.slow
def test_every_dispatch_of_the_predefined_list_is_rebuilt(run):
    """Among what its arguments make; a split with its slices."""
    assert run("generator", "--target=null", "--generated-dir=all", "--epilogue=none,bias+relu").status == 0
    by_arguments: dict[tuple[str, ...], set[Dispatch]] = {}
    for _, entry in load_manifest(Tree(Path("all"))).dispatches():
        dispatch = entry.dispatch
        key = tuple(pasted(dispatch.operation.kind, dispatch.arguments()))
        by_arguments.setdefault(key, set()).add(dispatch)
    assert len(by_arguments) > 40
    for arguments, dispatches in by_arguments.items():
        assert main(["--target=null", "--generated-dir=one", *arguments]) == 0
        one = {d.dispatch for _, d in load_manifest(Tree(Path("one"))).dispatches()}
        assert dispatches <= one
        Tree(Path("one")).manifest.unlink()


@pytest.mark.parametrize("wrong", ["m", "lhs", "epilogue"])
def test_another_argument_makes_another_operation(wrong):
    """The comparison above fails on what is not the same."""
    operation = Matmul(8, 16, 4, epilogue=Epilogue.parse("relu"))
    arguments = {**operation.arguments(), wrong: {"m": "9", "lhs": "f32n", "epilogue": "bias"}[wrong]}
    assert main(["--generated-dir=x", "--default-config=only", *pasted("matmul", arguments)]) == 0
    assert [e.operation for e in load_manifest(Tree(Path("x"))).entries] != [operation]


#: arguments -> regular expressions of what the sentence and the hint say
REFUSED: dict[str, tuple[str, str]] = {
    # ranges
    "--problem-m=64:1024:": ("malformed range '64:1024:'", "64:1024:128"),
    "--problem-m=:64": ("malformed range ':64'", "64:1024:128"),
    "--problem-m=1:2:3:4": ("malformed range '1:2:3:4'", "64:1024:128"),
    "--problem-m=": ("malformed range ''", "64:1024:128"),
    "--problem-m=8,": ("malformed range '' in '8,'", "64:1024:128"),
    "--problem-m=0": ("values must be at least 1, but got '0'", "64:1024:128"),
    "--problem-m=-5": ("malformed range '-5'", "64:1024:128"),
    "--problem-m=1e3": ("malformed range '1e3'", "64:1024:128"),
    "--problem-m=1.5": (r"malformed range '1\.5'", "64:1024:128"),
    "--problem-m=128:64": ("a range must not end before it starts, but got '128:64'", "64:1024:128"),
    "--problem-m=64:128:0": ("a step must be at least 1, but got '64:128:0'", "64:1024:128"),
    "--problem-n=x": ("--problem-n.*'x'", "64:1024:128"),
    "--batch-count=0": ("values must be at least 1", "64:1024:128"),
    "--conv-stride=0": ("values must be at least 1", "64:1024:128"),
    "--conv-padding=1x": ("malformed range ''", "64:1024:128"),
    "--conv-dilation=1x2x3x4": ("malformed range '3x4'", "64:1024:128"),
    "--split-k-slices=x": ("malformed range 'x'", "64:1024:128"),
    "--problem-m=" + "9" * 5000: ("9999", ""),
    # names
    "--op-kind=matmull": ("unknown operation kind 'matmull'", "did you mean 'matmul'"),
    "--op-kind=matmul,": ("unknown operation kind ''", "available: matmul"),
    "--lhs=f17": ("unknown element type 'f17'", "did you mean 'f16'"),
    "--lhs=f32,": ("unknown element type ''", "available: f64"),
    "--result=f33t": ("unknown element type 'f33t'", "f32"),
    "--layout=xy": ("unknown layout 'xy'", "available: tt, tn, nt, nn, nhwc, nchw"),
    "--target=kuda": ("unknown target 'kuda'", r"did you mean 'cuda'\? Available: llvm-cpu, cuda, rocm"),
    "--target=rocm": ("rocm needs an architecture", "write rocm:gfx942; available: "),
    "--target=cuda:sm_81": ("IREE 3.13 has no cuda architecture 'sm_81'", "did you mean 'sm_8"),
    "--target=llvm_cpu": ("unknown target 'llvm_cpu'", "did you mean 'llvm-cpu'"),
    "--target=llvm-cpu:": ("unknown CPU ''", "such as znver4"),
    "--epilogue=rel": ("unknown step 'rel' of an epilogue", "did you mean 'relu'"),
    "--epilogue=relu+": (r"malformed epilogue 'relu\+'", r"bias\+relu"),
    "--epilogue=clamp(1)": (r"clamp takes 2 numbers \(lo, hi\), but got clamp\(1\)", r"write clamp\(-1,1\)"),
    "--epilogue=clamp(2,1)": (r"clamp needs lo <= hi, but got clamp\(2,1\)", r"write clamp\(-1,1\)"),
    "--epilogue=bias,relu(6)": (r"relu takes no numbers, but got relu\(6\)", "write relu"),
    "--epilogue=": ("malformed epilogue ''", r"bias\+relu"),
    # options
    "--probelm-m=3": ("unrecognized arguments: --probelm-m=3", r"did you mean '--problem-m'\?"),
    "--problem=3": ("unrecognized arguments: --problem=3", r"did you mean '--problem-[mnk]'\?"),
    "768x512x1024": ("unrecognized arguments: 768x512x1024", "--help"),
    "--problem-m": ("--problem-m: expected one argument", "--help"),
    "--default-config=no": ("invalid choice: 'no'", "available: true, only"),
    "--split_k_mode=serial": ("invalid choice: 'serial'", "available: N/A, parallel"),
    # operations that do not exist
    "--lhs=f16 --rhs=i8 --result=i32": ("f16 and i8 inputs need a floating-point result", "use --result=f32"),
    "--op-kind=conv2d --lhs=f32 --rhs=f16": ("the same element type, but got lhs=f32, rhs=f16", ""),
    "--lhs=i32": ("i32 is the result type of i8 inputs", "use i8"),
    "--lhs=i8 --result=i8": (
        "i8 inputs need an i32 or floating-point result, but got result=i8",
        "use --result=i32",
    ),
    "--lhs=f16 --result=f64": ("summed in f32, which is narrower than result=f64", ""),
    "--lhs=i8 --epilogue=gelu": ("epilogue gelu needs a floating-point result", r"bias\+relu"),
    "--result=f32n": ("the result is stored row major", "lhs and rhs exchanged"),
    "--lhs=f32n,f32t": ("f32n, f32t has several layouts", ""),
    "--lhs=f16,f32 --rhs=f16,f32,f64": ("equally many, but got 2, 3", ""),
    # convolutions that do not exist: their hints; the sentences are in tests/test_invalid_operations.py
    "--conv-r=99": ("larger than its padded input along h: 99 > 56", "more padding"),
    "--conv-groups=64 --conv-k=96": (
        "groups must divide the filters k, but got groups=64",
        "valid groups: 1, 2, 4",
    ),
    "--conv-mode=bias_backward": (
        "a convolution has no mode bias_backward",
        "--op-kind=bias_backward generates",
    ),
    "--layout=nhwc_fhhc_nhwc": ("the filter layout 'fhhc' repeats h and lacks w", "each of f, c, h, w once"),
    "--layout=nwc_fww_nwc": (
        "the filter layout 'fww' repeats w and lacks c",
        "with 1 spatial axis has each of f, c, w",
    ),
    "--conv-d=4 --conv-padding=1x2": (
        r"padding must be three whole numbers \(depth, height, width\)",
        "such as 2x2x2",
    ),
    "--conv-output-padding=1": (
        "output padding is for transposed convolutions, but got 1",
        "add --conv-transposed",
    ),
    "--conv-transposed --conv-stride=2 --conv-output-padding=2": (
        "but got 2 along h with stride 2",
        "smaller",
    ),
    "--conv-transposed --conv-mode=weight_backward": (
        "has the mode forward only, but got weight_backward",
        "its input_backward is a forward convolution",
    ),
    "--conv-transposed=maybe": ("--conv-transposed: expected true or false, but got 'maybe'", ""),
    # contradictions
    "--op-kind=matmul --conv-n=1": (
        "shapes of conv1d or conv2d or conv3d were given, but the requested kinds",
        "",
    ),
    "--op-kind=matmul --batch-count=3": (
        "a batch count above 1 needs batch_matmul",
        "request batch_matmul too",
    ),
    "--op-kind=layer_norm --epilogue=relu": (
        "epilogue was given, but the requested kinds are layer_norm",
        "epilogue applies to matmul, batch_matmul, conv1d",
    ),
    "--norm-size=8 --lhs=f16": (
        "lhs was given, but the requested kinds are layer_norm",
        "lhs applies to matmul, batch_matmul, conv1d",
    ),
    "--op-kind=conv2d --problem-m=8": (
        "shapes of matmul or batch_matmul were given, but the requested kinds",
        "",
    ),
    "--lhs=f32nchw --rhs=f32hcf": ("the filter layout 'hcf' lacks w", "each of f, c, h, w once"),
    "--lhs=f32hwnc": ("the filter has no layout, but the others are input=hwnc", "such as hwcf"),
    "--lhs=f32nhwc --conv-mode=forward,input_backward": ("several modes", "use --layout"),
    "--op-kind=conv1d --layout=nhwc": (
        "the layout nhwc is for conv2d, but the requested kinds are conv1d",
        "",
    ),
    "--op-kind=conv1d --conv-h=8": (
        "shapes of conv2d or conv3d were given, but the requested kinds are conv1d",
        "",
    ),
    "--op-kind=conv2d --rhs=f32nhwc": ("nhwc", ""),
    "--op-kind=conv2d --lhs=f32hwcf": ("hwcf", ""),
    "--op-kind=conv2d --lhs=f32n": ("n", ""),
    "--op-kind=conv2d --layout=tn": ("tn", ""),
    "--op-kind=matmul --lhs=f32nhwc": ("nhwc", ""),
    "--op-kind=matmul --layout=nchw": ("nchw", ""),
    "--op-kind=matmul --lhs=f16n --layout=tn": ("tn", ""),
    # patterns
    "--dispatches=foo": ("no dispatch matches 'foo'", "did you mean 'matmul_"),
    "--dispatches=a,,b": ("empty pattern in 'a,,b'", "one comma"),
    "--dispatches=(abc": ("neither a glob nor a regular expression", ""),
    "--op-kind=conv2d --dispatches=matmul_*": (r"no dispatch matches 'matmul_\*'", "did you mean 'conv2d"),
    # files
    "--configurations=missing.yaml": (r"cannot read missing\.yaml: No such file", "takes a YAML file"),
    "--configurations=/dev/zero": ("it is a device, not a regular file", "takes a YAML file"),
    "--configurations=.": (r"cannot read \.: it is a directory", "takes a YAML file"),
    "--generated-dir=~no-such-user/x": ("~no-such-user", ""),
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda arguments: arguments[:60])
def test_a_request_that_cannot_be_met_is_refused(run, arguments):
    """Status 2, one sentence with what was got, one hint with the next step, nothing written."""
    said, hinted = REFUSED[arguments]
    outcome = run("generator", *arguments.split())
    assert (outcome.status, outcome.out) == (2, "")
    assert re.match(
        rf"generator\.py: error: [^\n]*({said})[^\n]*\nhint: [^\n]*({hinted})[^\n]*\n$", outcome.err
    )
    assert list(Path().iterdir()) == []


def test_the_check_above_can_fail(run):
    """A request that can be met is not refused."""
    assert run("generator", "--problem-m=8", "--dry-run").status == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configurations: [", "is not valid YAML"),
        ("- {flow: ukernels}", "has no list under 'configurations'"),
        ("configurations: [{flow: ukernel}]", "entry 1: unknown flow 'ukernel'"),
        ("configurations: [{default: true}, {tile: 3}]", "entry 2: unknown key 'tile'"),
    ],
)
def test_a_list_that_is_malformed_is_refused(run, text, message):
    """With the file, the entry and the key."""
    Path("mine.yaml").write_text(text)
    outcome = run("generator", "--configurations=mine.yaml").checked(2)
    assert f"mine.yaml{' ' if message[0] in 'ih' else ', '}{message}" in outcome.err
    assert not Path("generated").exists()


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]], ids=["real", "dry run"])
def test_a_file_in_place_of_the_folder_is_refused(run, arguments):
    """It stays as it is; a dry run says what a real one would."""
    Path("file").write_text("precious")
    outcome = run("generator", "--generated-dir=file", *arguments).checked(2)
    assert "file is a file, not a folder" in outcome.err
    assert Path("file").read_text() == "precious"


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere, so root becomes an unprivileged user."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_refused(run):
    """With its path and what the system said; it is another folder that helps."""
    Path("locked").mkdir(mode=0o555)
    run("generator", "--problem-m=8", "--dry-run")  # imports what there is to import
    with as_nobody():
        outcome = run("generator", "--problem-m=8", "--generated-dir=locked")
    assert outcome.status == 2
    assert re.search(r"error: .*locked.*ermission denied|error: .*ermission denied.*locked", outcome.err)
    assert "\nhint: " in outcome.err


def test_a_disk_that_is_full_is_told(run, monkeypatch):
    """Status 1: the request was right, the machine could not."""
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    outcome = run("generator", "--problem-m=8").checked(1)
    assert "No space left on device" in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(Path().rglob("*.tmp"))


def test_a_damaged_manifest_is_refused(run):
    """With its path and the next step, and nothing is written over."""
    manifest = Tree(Path()).manifest
    manifest.parent.mkdir(parents=True)
    manifest.write_text("damaged")
    outcome = run("generator", "--problem-m=8").checked(2)
    assert f"the manifest {manifest} is damaged" in outcome.err
    assert f"hint: remove {manifest} and run generator.py and compile.py again" in outcome.err
    assert manifest.read_text() == "damaged"
    assert [path.name for path in manifest.parent.iterdir()] == ["manifest.json"]


def test_ctrl_c_keeps_what_was_written(run, monkeypatch):
    """Status 130; the manifest holds what there is."""
    from dispatch_profiler.dispatches import load_manifest
    from dispatch_profiler.generator import cli

    def interrupt(line: str, file: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "fitted", interrupt)
    outcome = run("generator", "--m=8", "--n=8", "--k=8", "--lhs=f32,f16").checked(130)
    assert "finished work is kept" in outcome.err
    assert [entry.operation for entry in load_manifest(Tree(Path())).entries] == [Matmul(8, 8, 8)]


ROOT = Path(__file__).parents[2]
LOG = ROOT / "benchmarks" / "workloads" / "gemm_log.yaml"
DAMAGED = ROOT / "tests" / "workloads" / "gemm_log_damaged.yaml"
NULL = ("--target=null", "--default-config=only")


def entries(folder: str = ".") -> dict[str, int]:
    return {each.operation.name: each.count for each in load_manifest(Tree(Path(folder))).entries}


def test_the_operations_of_a_log_are_generated(run):
    outcome = run("generator", *NULL, f"--workload={LOG}").checked()
    assert list(entries()) == [each.operation.name for each in read_workload(LOG).workload.entries]
    assert "Read 11 lines with 10 operations; skipped 0 damaged and 4 unsupported" in outcome.err
    assert "gemm_log.yaml:6: not supported: a bias of type f32_r" in outcome.err


def test_damaged_lines_are_listed_and_make_the_exit_status_1(run):
    outcome = run("generator", *NULL, "--quiet", "--workload", str(DAMAGED)).checked(1)
    assert "gemm_log_damaged.yaml:6: M must be at least 1, but got -5" in outcome.err
    assert len(entries()) == 5


def test_several_files_are_merged_and_saved(run, tmp_path: Path):
    mine, saved = tmp_path / "mine.yaml", tmp_path / "saved.yaml"
    write_workload(
        Workload((WorkloadEntry(Matmul(8, 8, 8), 3), WorkloadEntry(Matmul(64, 512, 512), 5))), mine
    )
    run("generator", *NULL, f"--workload={mine}", f"--workload={LOG}", f"--save-workload={saved}").checked()
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
    outcome = run("generator", *NULL, f"--workload={LOG}", "--problem-m=8", "--epilogue=relu").checked(2)
    assert "--workload gives the operations, but --problem-m, --epilogue was given too" in outcome.err


def test_many_damaged_lines_are_summarized(run, tmp_path: Path):
    path = tmp_path / "log.yaml"
    path.write_text(LOG.read_text() + "nonsense\n" * 30)
    outcome = run("generator", *NULL, "--dry-run", f"--workload={path}").checked(1)
    assert "14 more lines skipped; --verbose lists them all:" in outcome.err
    assert "14 x neither a call in a hipBLASLt log nor a command of MIOpenDriver" in outcome.err
    assert "log.yaml:45:" in run("generator", *NULL, "--dry-run", "--verbose", f"--workload={path}").err


def test_a_table_of_shapes_is_a_workload(run, tmp_path: Path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,type,count,us\n8,16,32,bf16,48,1.5\n8,x,32,bf16,1,2\n")
    outcome = run("generator", *NULL, f"--workload={path}").checked(1)
    assert list(entries()) == ["matmul_8x16x32_bf16t_bf16t_bf16t"]
    assert "shapes.csv:3: n: expected a whole number, but got 'x'" in outcome.err
    assert "shapes.csv: ignored 1 column: us" in outcome.err


def test_a_misspelled_column_is_an_error_with_the_next_step(run, tmp_path: Path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,cuont\n8,16,32,4\n")
    outcome = run("generator", *NULL, f"--workload={path}").checked(2)
    assert "shapes.csv:1: unknown column 'cuont'" in outcome.err and "did you mean 'count'?" in outcome.err


def test_an_empty_log_is_an_error(run, tmp_path: Path):
    path = tmp_path / "log.yaml"
    path.write_text("")
    outcome = run("generator", *NULL, f"--workload={path}").checked(2)
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
