"""`generator.py` and requests that cannot be met: status 2, one sentence, a hint, nothing written."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree
from dispatch_profiler.operations import Matmul

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
    "--problem-m": ("--problem-m/--m: expected one argument", "--help"),
    "--default-config=no": ("invalid choice: 'no'", "available: true, only"),
    "--split_k_mode=serial": ("invalid choice: 'serial'", "available: N/A, parallel"),
    # operations that do not exist
    "--lhs=f32 --rhs=f16": ("the same element type, but got lhs=f32, rhs=f16", ""),
    "--lhs=i32": ("i32 is the result type of i8 inputs", "use i8"),
    "--lhs=i8 --result=f32": ("i8 inputs need an i32 result, but got result=f32", "use --result=i32"),
    "--lhs=f16 --result=f64": ("summed in f32, which is narrower than result=f64", ""),
    "--lhs=i8 --epilogue=gelu": ("epilogue gelu needs a floating-point result", r"bias\+relu"),
    "--result=f32n": ("the result is stored row major", "lhs and rhs exchanged"),
    "--lhs=f32n,f32t": ("f32n, f32t has several layouts", ""),
    "--lhs=f16,f32 --rhs=f16,f32,f64": ("equally many, but got 2, 3, 2", ""),
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
    outcome = run("generator", "--configurations=mine.yaml")
    assert outcome.status == 2
    assert f"mine.yaml{' ' if message[0] in 'ih' else ', '}{message}" in outcome.err
    assert not Path("generated").exists()


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]], ids=["real", "dry run"])
def test_a_file_in_place_of_the_folder_is_refused(run, arguments):
    """It stays as it is; a dry run says what a real one would."""
    Path("file").write_text("precious")
    outcome = run("generator", "--generated-dir=file", *arguments)
    assert outcome.status == 2
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
    outcome = run("generator", "--problem-m=8")
    assert outcome.status == 1
    assert "No space left on device" in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(Path().rglob("*.tmp"))


def test_a_damaged_manifest_is_refused(run):
    """With its path and the next step, and nothing is written over."""
    manifest = Tree(Path()).manifest
    manifest.parent.mkdir(parents=True)
    manifest.write_text("damaged")
    outcome = run("generator", "--problem-m=8")
    assert outcome.status == 2
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
    outcome = run("generator", "--m=8", "--n=8", "--k=8", "--lhs=f32,f16")
    assert outcome.status == 130
    assert "finished work is kept" in outcome.err
    assert [entry.operation for entry in load_manifest(Tree(Path())).entries] == [Matmul(8, 8, 8)]
