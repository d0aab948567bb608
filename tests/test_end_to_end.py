"""Generate, compile, profile: the three commands as their users type them, and with every mode of every kind."""

from __future__ import annotations

import csv
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS, arguments_of

from dispatch_profiler.operations import (
    CONV_ROLES,
    CONVOLUTION_KINDS,
    DEFAULT_SEED,
    KINDS,
    Distribution,
    Matmul,
    Operation,
    operation_from_dict,
)
from dispatch_profiler.profiler.verification.inputs import draw

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def command(script: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`python <script> <arguments>` in the working folder of the test."""
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def rows(path: str = "data.csv") -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


TWO = """
configurations:
  - {distribution: [64, 128], vector: [8, 32, 4]}
  - {flow: data_tiling}
"""
SMALL = ("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32")


@pytest.mark.usefixtures("shared_cache")
def test_three_commands_from_a_shape_to_verified_figures():
    Path("two.yaml").write_text(TWO)
    assert command("generator.py", *SMALL, "--configurations=two.yaml").returncode == 0
    assert command("compile.py", "--generated-dir").returncode == 0
    profiled = command("profiler.py", r"--dispatches=matmul_64x64x64_.*", "--output=data.csv", "--budget=0.2")

    assert profiled.returncode == 0, profiled.stderr
    assert [row["Verification"] for row in rows()] == ["SUCCESS"] * 3
    assert all(float(row["Runtime(ms)"]) > 0 for row in rows())


SWEEP = [
    ("every layout", ["--problem-m=24", "--problem-n=32", "--problem-k=40", "--layout=tt,tn,nt,nn", "--lhs=f32"]),
    ("every type", ["--problem-m=32", "--problem-n=32", "--problem-k=64", "--lhs=f64,f32,f16,bf16,f8,i8"]),
    ("mixed types", ["--problem-m=32", "--problem-n=32", "--problem-k=64", "--lhs=f16,bf16,f8", "--result=f32"]),
    ("narrow f8 result", ["--problem-m=256", "--problem-n=32", "--problem-k=64", "--lhs=f8,f32", "--result=f8", "--epilogue=none,bias+relu"]),
    ("epilogues", [*SMALL, "--epilogue=bias,relu,gelu,sigmoid,tanh,bias+relu,bias+gelu"]),
    ("epilogues in f16", [*SMALL[:3], "--lhs=f16", "--epilogue=bias,bias+relu,gelu,sigmoid,bias+tanh"]),
    ("epilogues on integers", [*SMALL[:3], "--lhs=i8", "--epilogue=bias,relu,bias+relu"]),
    ("epilogues in f64", [*SMALL[:3], "--lhs=f64", "--epilogue=bias,relu,sigmoid,tanh"]),
    ("batches", ["--batch-count=1:3", "--problem-m=32", "--problem-n=16", "--problem-k=24", "--layout=tt,nn"]),
    ("batches with a bias", ["--batch-count=2", "--problem-m=32", "--problem-n=16", "--epilogue=bias+gelu"]),
    ("split-k", ["--problem-m=32", "--problem-n=64", "--problem-k=128", "--split-k-slices=2:4:2", "--layout=tt,nt,tn,nn"]),
    ("split-k with a bias", ["--problem-m=32", "--problem-n=64", "--problem-k=128", "--split-k-slices=4", "--epilogue=bias+relu"]),
    ("no tile divides", ["--problem-m=17", "--problem-n=33", "--problem-k=19", "--lhs=f32,f16,i8"]),
    ("a vector", ["--problem-m=1", "--problem-n=64", "--problem-k=64"]),
    ("a column", ["--problem-m=64", "--problem-n=1", "--problem-k=64"]),
    ("nothing to sum", ["--problem-m=16", "--problem-n=16", "--problem-k=1"]),
]  # fmt: skip

CONV = ["--conv-n=1,2", "--conv-h=14", "--conv-w=16", "--conv-c=16", "--conv-k=32"]
CONV_SWEEP = [
    ("3x3 in both layouts", [*CONV, "--layout=nhwc,nchw", "--lhs=f32"]),
    ("padding", [*CONV, "--conv-padding=1,2x0", "--layout=nhwc,nchw", "--lhs=f32"]),
    ("stride and dilation", [*CONV, "--conv-stride=2,1x2", "--conv-dilation=1,2", "--lhs=f32"]),
    ("pointwise", [*CONV, "--conv-r=1", "--conv-s=1", "--conv-stride=1,2", "--layout=nhwc,nchw"]),
    ("a row", [*CONV, "--conv-r=1", "--conv-s=3", "--lhs=f32"]),
    ("groups", [*CONV, "--conv-groups=4", "--layout=nhwc,nchw", "--conv-padding=1", "--lhs=f32"]),
    ("depthwise", [*CONV[:4], "--conv-k=16", "--conv-groups=16", "--layout=nhwc,nchw", "--conv-padding=1"]),
    ("depthwise with two filters", [*CONV, "--conv-groups=16", "--layout=nhwc,nchw", "--lhs=f32"]),
    ("types", [*CONV[1:], "--lhs=f64,f16,bf16,f8,i8", "--conv-padding=1"]),
    ("types in nchw", [*CONV[1:], "--lhs=f16,i8", "--layout=nchw"]),
    ("epilogues", [*CONV, "--epilogue=bias,bias+relu,gelu,sigmoid,tanh", "--layout=nhwc,nchw", "--lhs=f32"]),
    ("an image as large as its filter", ["--conv-n=2", "--conv-h=3", "--conv-w=3", "--conv-c=16", "--conv-k=16"]),
    ("odd extents", ["--conv-n=1", "--conv-h=15", "--conv-w=13", "--conv-c=7", "--conv-k=9", "--lhs=f32,f16"]),
    ("gradients", [*CONV, "--conv-mode=input_backward,weight_backward", "--conv-stride=1,2", "--conv-padding=1", "--lhs=f32,f16"]),
    ("gradients of groups", [*CONV, "--conv-mode=input_backward,weight_backward", "--conv-groups=4,16", "--layout=nchw", "--lhs=f32"]),
    ("other layouts", [*CONV, "--layout=nhwc_kyxc_nhwc,nchw_hwcf_nhwc,hwcn_fhcw_nwhc", "--lhs=f32,i8"]),
    ("padding after", [*CONV, "--conv-padding=0,1x2", "--conv-padding-after=1x0", "--lhs=f32"]),
    ("transposed", [*CONV, "--conv-transposed", "--conv-stride=2", "--conv-padding=1", "--conv-output-padding=0,1", "--epilogue=bias"]),
    ("conv1d", ["--conv-n=1,2", "--conv-w=33", "--conv-c=12", "--conv-k=16", "--conv-stride=1,2", "--conv-groups=1,4", "--layout=nwc,ncw"]),
    ("conv3d", ["--conv-n=1", "--conv-d=5", "--conv-h=6", "--conv-w=7", "--conv-c=4", "--conv-k=8", "--conv-padding=1", "--conv-mode=forward,weight_backward", "--lhs=f32"]),
]  # fmt: skip
NORMS = "--op-kind=layer_norm,layer_norm_input_backward,layer_norm_weight_backward"
REDUCTION_SWEEP = [
    ("layer norms of every type", [NORMS, "--norm-rows=3,128", "--norm-size=5,768", "--norm-type=f32,f16,bf16,f64"]),
    ("layer norms with a weight alone", [NORMS, "--norm-rows=7", "--norm-size=33", "--norm-affine=weight,bias"]),
    ("layer norms without weights", [NORMS, "--norm-rows=7", "--norm-size=33", "--norm-affine=false"]),
    ("layer norms of one element", [NORMS, "--norm-rows=1,9", "--norm-size=1", "--norm-type=f32,f16,bf16,f64"]),
    ("gradients of a bias", ["--bias-outer=1,48", "--bias-channels=7,64", "--bias-inner=1,36", "--bias-type=f32,f16,bf16,f64"]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "arguments"),
    [*SWEEP, *CONV_SWEEP, *REDUCTION_SWEEP],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_every_configuration_of_every_operation_is_right(what: str, arguments: list[str], run):
    """Every dispatch of the sweep compiles, is applied and is SUCCESS."""
    assert run("generator", *arguments).status == 0
    run("compile").checked()
    verified = run("profiler", "--profiling-enabled=false", "--output=data.csv")

    wrong = [
        (r["Dispatch"], r["Verification"], r["reason"]) for r in rows() if r["Verification"] != "SUCCESS"
    ]
    assert wrong == []
    assert verified.status == 0


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_the_default_sweep_is_right():
    """Every dispatch of the predefined sweep is SUCCESS, and has a figure."""
    assert command("generator.py").returncode == 0
    compiled = command("compile.py")
    assert compiled.returncode == 0, compiled.stderr
    profiled = command("profiler.py", "--output=data.csv")

    assert profiled.returncode == 0, profiled.stderr
    assert {row["Verification"] for row in rows()} == {"SUCCESS"}
    assert all(row["Runtime(ms)"] for row in rows())


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_a_build_directory_serves_all_the_way():
    """The wheels' commands stand in for someone's own IREE build."""
    command("generator.py", *SMALL, "--default-config=only")
    assert command("compile.py", f"--build-dir={BIN}").returncode == 0
    profiled = command("profiler.py", f"--build-dir={BIN}", "--output=data.csv", "--benchmark-repetitions=2")

    assert profiled.returncode == 0, profiled.stderr
    assert [row["Verification"] for row in rows()] == ["SUCCESS"]


@pytest.mark.slow
def test_output_into_a_pipe_that_closes_is_no_traceback():
    command("generator.py", *SMALL, "--default-config=only")
    command("compile.py")
    script = f"{sys.executable} {ROOT}/profiler.py --dry-run | head -0; true"

    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert "Traceback" not in done.stderr


def not_followed() -> dict[str, str]:
    """Our environment without coverage: Ctrl-C within its lock would hang what it follows."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


@contextmanager
def compiling(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`compile.py` in a process group of its own, after its first line of progress."""
    shapes = ("--problem-m=32:256:32", "--problem-n=64", "--problem-k=64", "--lhs=f32")
    command("generator.py", *shapes, "--default-config=only")
    with subprocess.Popen(
        [sys.executable, str(ROOT / "compile.py"), *arguments],
        stderr=subprocess.PIPE, env=not_followed(), text=True, start_new_session=True,
    ) as process:  # fmt: skip
        process.stderr.readline()
        yield process


@pytest.mark.slow
def test_an_interrupted_compilation_goes_on_where_it_stopped():
    """After Ctrl-C what is done is kept, nothing is half-written, and the next run does the rest."""
    with compiling("-j1") as process:
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert process.returncode == 130
    assert "interrupted; finished work is kept" in rest
    assert "Traceback" not in rest
    assert not list(Path("generated").rglob("*.tmp"))
    again = command("compile.py")
    assert again.returncode == 0
    assert int(again.stderr.split(";")[-1].split()[0]) >= 1


@pytest.mark.slow
def test_no_process_is_left_behind():
    """After an interrupt the workers are gone too."""
    with compiling("-j2") as process:
        children = [
            int(stat.parent.name)
            for stat in Path("/proc").glob("[0-9]*/stat")
            if stat.read_text().rsplit(")", 1)[1].split()[1] == str(process.pid)
        ]
        process.send_signal(signal.SIGINT)
        process.stderr.read()

    assert children
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.usefixtures("in_process")
def test_every_mode_of_every_kind_is_here():
    """Add a new kind to `EVERY_MODE` in every_kind.py: the tests below and those of planted faults read it."""
    assert {each.kind for each in EVERY_MODE} == set(KINDS)
    modes = {(each.kind, each.convolution.mode) for each in EVERY_MODE if each.convolution}
    assert modes == set(itertools.product(CONVOLUTION_KINDS.values(), CONV_ROLES))
    assert len(set(EVERY_MODE)) == len({each.name for each in EVERY_MODE}) == len(set(IDS)) == len(IDS)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
def test_every_kind_comes_back_from_plain_data(operation):
    assert operation_from_dict(operation.to_dict()) == operation


@pytest.mark.usefixtures("in_process")
def test_both_gradients_of_a_matrix_product_are_matrix_products():
    """By torch's autograd in float64."""
    torch = pytest.importorskip("torch")
    forward, by_lhs, by_rhs = (each for each in EVERY_MODE if isinstance(each, Matmul))
    a, b = (array.astype(np.float64) for array in draw(forward, Distribution.REALS, DEFAULT_SEED))
    gradient = np.random.default_rng(DEFAULT_SEED).uniform(-1, 1, forward.result.shape)
    with torch.enable_grad():
        leaves = [torch.from_numpy(each).requires_grad_() for each in (a, b)]
        theirs = torch.autograd.grad(leaves[0] @ leaves[1], leaves, torch.from_numpy(gradient))
    np.testing.assert_allclose(by_lhs.contract(gradient, b), theirs[0], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(by_rhs.contract(a, gradient), theirs[1], rtol=1e-13, atol=1e-13)


@pytest.fixture
def make_tree(run, shared_builds) -> Callable[..., None]:
    """Generate the default of `operations` for a target, each by its own command line, and compile."""

    def make(target: str, operations: Sequence[Operation] = EVERY_MODE) -> None:
        for operation in operations:
            run(
                "generator", f"--target={target}", "--default-config=only", *arguments_of(operation)
            ).checked()
        run("compile", f"--cache-dir={shared_builds}").checked()

    return make


def verdicts(provider: str) -> dict[str, str]:
    """Operation -> verdict and reason, of the rows of data.csv with this provider."""
    rows = csv.DictReader(Path("data.csv").read_text().splitlines())
    return {
        row["Operation"]: f"{row['Verification']} {row['reason']}".rstrip()
        for row in rows
        if row["Provider"] == provider
    }


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_a_bundle_of_every_kind_is_verified_beside_the_libraries(make_tree, run, tmp_path, monkeypatch):
    """numpy and torch compute every mode in f32, so that none of them is `Not supported`."""
    pytest.importorskip("torch")
    make_tree("null")
    assert run("compile", "--bundle=out.zip").status == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move("out.zip", elsewhere)
    monkeypatch.chdir(elsewhere)

    run(
        "profiler", "--bundle=out.zip", "--providers=iree,numpy,torch", "--profiling-enabled=false",
        "--output=data.csv",
    ).checked()  # fmt: skip
    for provider in ("IREE Codegen", "numpy", "torch"):
        assert verdicts(provider) == {each.name: "SUCCESS" for each in EVERY_MODE}, provider


@pytest.mark.usefixtures("in_process")
def test_every_kind_is_compiled_and_verified_on_this_cpu(make_tree, run):
    """Each block has the arguments that generate its operation."""
    one_of_each = list({each.kind: each for each in EVERY_MODE}.values())
    make_tree("llvm-cpu", one_of_each)

    outcome = run(
        "profiler", "--device=local-sync", "--profiling-enabled=false", "--output=data.csv"
    ).checked()
    assert verdicts("IREE Codegen") == {each.name: "SUCCESS" for each in one_of_each}
    said = " ".join(outcome.out.split())
    for operation in one_of_each:
        assert " ".join(f"--{name}={value}" for name, value in operation.arguments().items()) in said


def last_result(operation: Operation) -> str:
    return operation.results[-1].name


@pytest.mark.some(2)
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("fault", ["wrong_element", "nan", "unwritten"])
def test_a_fault_in_the_last_result_of_every_kind_is_found(make_tree, run, fault):
    Path("faults.yaml").write_text(f"'*': {{fault: {fault}}}")
    make_tree("null:faults.yaml")

    run("profiler", "--profiling-enabled=false", "--output=data.csv").checked(1)
    found = verdicts("IREE Codegen")
    assert set(found) == {each.name for each in EVERY_MODE}
    for operation in EVERY_MODE:
        reason = found[operation.name]
        assert reason.startswith("FAILED "), reason
        assert f"elements are wrong; the worst: {last_result(operation)}[" in reason
