"""`generator.py`: the command lines of the IREE dispatch profiler, and what every option changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.operations import KINDS

ROOT = Path(__file__).parents[2]
ONE = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")


@pytest.fixture
def names(run):
    """`names("--problem-m=8")`: the operations that a command line stands for, in order."""

    def ask(*arguments: str) -> list[str]:
        outcome = run("generator", "--dry-run", "--default-config=only", *arguments).checked()
        return [Path(line).stem for line in outcome.out.splitlines() if line.startswith("[Generating]")]

    return ask


@pytest.fixture
def configurations(run):
    """`configurations("--problem-m=8")`: the configurations of the first operation, in order."""

    def ask(*arguments: str) -> list[str]:
        outcome = run("generator", "--dry-run", "--target=null", *arguments).checked()
        lines = outcome.out.splitlines()[1:]
        end = next((i for i, line in enumerate(lines) if line.startswith("[")), len(lines))
        return [line.rpartition(" ")[2] for line in lines[:end]]

    return ask


def generated(folder: str = ".") -> list[str]:
    return [entry.operation.name for entry in load_manifest(Tree(Path(folder))).entries]


# -- command lines of the IREE dispatch profiler ---------------------------------------------------


def test_the_documents_shape(run):
    """`--generated-dir X --problem-m=768 --problem-n=512 --problem-k=1024`: f16, then f32."""
    shape = ("--problem-m=768", "--problem-n=512", "--problem-k=1024")
    outcome = run("generator", "--generated-dir", "X", *shape).checked()
    f16, f32 = "matmul_768x512x1024_f16t_f16t_f16t", "matmul_768x512x1024_f32t_f32t_f32t"
    assert [line for line in outcome.out.splitlines() if "Generating" in line] == [
        f"[Generating]: ./X/generated/linalg/matmul/{f16}/{f16}.mlir",
        f"[Generating]: ./X/generated/linalg/matmul/{f32}/{f32}.mlir",
    ]
    assert Path(f"X/generated/linalg/matmul/{f16}/{f16}.mlir").is_file()
    assert generated("X") == [f16, f32]


def test_the_documents_lines(run):
    """A line a file, a line a configuration, and nothing else on standard output."""
    lines = run("generator", *ONE).out.splitlines()
    name = "matmul_16x32x8_f32t_f32t_f32t"
    assert lines[0] == f"[Generating]: ./generated/linalg/matmul/{name}/{name}.mlir"
    assert lines[1] == "    Emitting tuning configuration : tile_config_default"
    assert all(line.startswith("    Emitting tuning configuration : ") for line in lines[1:])
    announced = [line.rpartition(" ")[2] for line in lines[1:]]
    (entry,) = load_manifest(Tree(Path())).entries
    assert announced == [d.dispatch.configuration.name for d in entry.dispatches]


def test_the_documents_sweep(run):
    """`64:1024:128` is 64, 192, ... 960; every m with every n, in f16 and f32."""
    sweep = ("--problem-m=64:1024:128", "--problem-n=64:1024:128", "--problem-k=4096")
    assert run("generator", "--generated-dir", "X", "--default-config=only", *sweep).status == 0
    steps = range(64, 1025, 128)
    assert generated("X") == [
        f"matmul_{m}x{n}x4096_{t}t_{t}t_{t}t" for m in steps for n in steps for t in ("f16", "f32")
    ]


def test_the_end_of_a_range_is_included(names):
    """As FROM:TO in the IREE dispatch profiler."""
    swept = names("--problem-m=64:192:64", "--problem-n=8:10", "--problem-k=4", "--lhs=f32")
    assert swept == [f"matmul_{m}x{n}x4_f32t_f32t_f32t" for m in (64, 128, 192) for n in (8, 9, 10)]


def test_the_script_runs_from_anywhere():
    """`python generator.py --problem-m=64:1024:128`, in a folder of the user's."""
    ended = subprocess.run(
        [sys.executable, ROOT / "generator.py", "--problem-m=64:1024:128", "--default-config=only"],
        capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == [
        "--problem-m: 64:1024:128 ends at 960: the next step would pass 1024",
        "Generated 16 dispatches of 16 operations for llvm-cpu; left out 0.",
    ]
    assert generated()[0] == "matmul_64x256x256_f16t_f16t_f16t"


@pytest.mark.parametrize("arguments", [[], ["--generated-dir"]], ids=["left out", "without value"])
def test_the_tree_is_made_here_unless_named(run, arguments):
    """Also with `--generated-dir` alone, as the IREE dispatch profiler's documentation writes it."""
    assert run("generator", *arguments, *ONE).status == 0
    assert Path("generated/linalg/manifest.json").is_file()


def test_an_absolute_folder_stays_absolute(run, tmp_path):
    """No `./` in front of it; `~` is the home."""
    assert (
        f"[Generating]: {tmp_path}/x/generated/"
        in run("generator", f"--generated-dir={tmp_path}/x", *ONE).out
    )
    assert f"[Generating]: {tmp_path}/home/y/generated/" in run("generator", "--generated-dir=~/y", *ONE).out


def test_the_predefined_list(names):
    """Without a shape: problems of every kind, among them those of the IREE dispatch profiler."""
    every = names()
    assert {name.partition("_")[0] for name in every} == {kind.partition("_")[0] for kind in KINDS}
    assert "matmul_3456x1024x2048_f16t_f16t_f16t" in every
    assert "batch_matmul_16x512x64x512_f16t_f16t_f16t" in every
    assert {"matmul_128x128x256_f16t_f16t_f16t", "matmul_256x512x128_f32t_f32t_f32t_bias_relu"} <= set(every)
    groups = {name.rpartition("_g")[2] for name in every if name.startswith("conv2d")}
    assert groups == {"1", "4", "128", "1_bias_relu"}


# -- which operations ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("option", ["--op-kind", "--operation-kind"])
def test_a_kind_takes_its_part_of_the_predefined_list(names, option, kind):
    """In both spellings."""
    chosen = names(f"{option}={kind}")
    of_kind = re.compile(rf"{kind}_[0-9]")
    assert chosen == [name for name in names() if of_kind.match(name)] != []


def test_all_kinds_are_all(names):
    """`all`, a list of all, and nothing."""
    assert names("--op-kind=all") == names("--op-kind=" + ",".join(KINDS)) == names()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--problem-m=8", "--problem-n=4", "--problem-k=2"], ["matmul_8x4x2"]),
        (["--m=8", "--n=4", "--k=2", "--batch_count=1"], ["matmul_8x4x2"]),
        (["--m=8", "--n=4", "--k=2", "--batch-count=3"], ["batch_matmul_3x8x4x2"]),
        (["--m=8", "--n=4", "--k=2", "--op-kind=batch_matmul"], ["batch_matmul_1x8x4x2"]),
        (
            ["--m=8", "--n=4", "--k=2", "--batch-count=2:3", "--op-kind=matmul,batch_matmul"],
            ["matmul_8x4x2", "batch_matmul_2x8x4x2", "batch_matmul_3x8x4x2"],
        ),
        (["--m=8"], ["matmul_8x256x256"]),
        (["--m=8,8,4:5", "--n=1", "--k=1"], ["matmul_8x1x1", "matmul_4x1x1", "matmul_5x1x1"]),
    ],
)
def test_given_shapes_replace_the_predefined_ones(names, arguments, expected):
    """What is not given is 256; a batch makes it a batch_matmul; equal ones come once."""
    assert names("--lhs=f32", *arguments) == [f"{name}_f32t_f32t_f32t" for name in expected]


CONV = (
    "--lhs=f32",
    "--conv-n=1",
    "--conv-h=8",
    "--conv-w=9",
    "--conv-c=4",
    "--conv-k=6",
    "--conv-r=3",
    "--conv-s=2",
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["1x8x9x4_3x2x4x6_1x6x8x6 s1x1_p0x0_d1x1_g1"]),
        (["--conv-stride=2"], ["1x8x9x4_3x2x4x6_1x3x4x6 s2x2_p0x0_d1x1_g1"]),
        (["--conv-padding=0,1x2"], ["1x8x9x4_3x2x4x6_1x6x8x6 s1x1_p0x0_d1x1_g1", "1x8x9x4_3x2x4x6_1x8x12x6 s1x1_p1x2_d1x1_g1"]),
        (["--conv-dilation=2x1"], ["1x8x9x4_3x2x4x6_1x4x8x6 s1x1_p0x0_d2x1_g1"]),
        (["--conv-groups=2"], ["1x8x9x4_3x2x2x6_1x6x8x6 s1x1_p0x0_d1x1_g2"]),
        (["--conv-n=2:3"], ["2x8x9x4_3x2x4x6_2x6x8x6 s1x1_p0x0_d1x1_g1", "3x8x9x4_3x2x4x6_3x6x8x6 s1x1_p0x0_d1x1_g1"]),
    ],
)  # fmt: skip
def test_convolutions_are_swept(names, arguments, expected):
    """Every extent is a range; stride, padding and dilation are ranges or pairs."""
    tags = "_f32nhwc_f32hwcf_f32nhwc_"
    assert names(*CONV, *arguments) == ["conv2d_" + name.replace(" ", tags) for name in expected]


def test_given_shapes_of_two_kinds_give_both(names):
    """Shapes say the kind where none is named."""
    kinds = [name.partition("_")[0] for name in names(*CONV, "--m=8")]
    assert kinds == ["matmul", "conv2d"]


# -- types, layouts, epilogues ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ["f16t_f16t_f16t", "f32t_f32t_f32t"]),
        ("--lhs=bf16", ["bf16t_bf16t_bf16t"]),
        ("--rhs=f64", ["f64t_f64t_f64t"]),
        ("--result=f32", ["f32t_f32t_f32t"]),
        ("--lhs=f16 --result=f32", ["f16t_f16t_f32t"]),
        ("--lhs=f16,bf16 --result=f32", ["f16t_f16t_f32t", "bf16t_bf16t_f32t"]),
        ("--lhs=f16 --result=f16,f32", ["f16t_f16t_f16t", "f16t_f16t_f32t"]),
        ("--lhs=f16,f32 --rhs=f16,f32 --result=f16,f32", ["f16t_f16t_f16t", "f32t_f32t_f32t"]),
        ("--lhs=i8", ["i8t_i8t_i32t"]),
        ("--lhs=f8", ["f8E4M3FNt_f8E4M3FNt_f32t"]),
        ("--lhs=f8E4M3FN --result=f8E4M3FN", ["f8E4M3FNt_f8E4M3FNt_f8E4M3FNt"]),
        ("--lhs=f8t --rhs=f8n", ["f8E4M3FNt_f8E4M3FNn_f32t"]),
        ("--lhs=f16t --rhs=f16n --result=f16t", ["f16t_f16n_f16t"]),
        ("--rhs=f16n", ["f16t_f16n_f16t"]),
        ("--lhs=f16n,f32n", ["f16n_f16t_f16t", "f32n_f32t_f32t"]),
        ("--lhs=f32 --layout=tn", ["f32t_f32n_f32t"]),
        ("--lhs=f32 --layout=nn,nt", ["f32n_f32n_f32t", "f32n_f32t_f32t"]),
        ("--lhs=f32 --layout=nn,nhwc", ["f32n_f32n_f32t"]),
    ],
)
def test_types_and_layouts_of_a_matmul(names, arguments, expected):
    """Given types replace the predefined ones; layouts stand with them or in --layout."""
    every = names("--m=8", "--n=8", "--k=8", *arguments.split())
    assert every == [f"matmul_8x8x8_{tags}" for tags in expected]


def test_blanks_in_a_list_are_passed_over(names):
    """In types, layouts, ranges and epilogues alike."""
    shape = ("--m=8, 4", "--n=8", "--k=8", "--lhs=f32")
    assert len(names(*shape, "--layout=tn, nn", "--epilogue=relu, bias")) == 8
    assert len(names(*shape[:3], "--lhs=f16, f32")) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--lhs=f32", ["f32nhwc_f32hwcf_f32nhwc"]),
        ("--lhs=f32 --layout=nchw", ["f32nchw_f32fchw_f32nchw"]),
        ("--lhs=f16 --layout=nchw,nhwc", ["f16nchw_f16fchw_f16nchw", "f16nhwc_f16hwcf_f16nhwc"]),
        ("--lhs=f32nchw", ["f32nchw_f32fchw_f32nchw"]),
        ("--lhs=f32 --rhs=f32fchw", ["f32nchw_f32fchw_f32nchw"]),
        ("--lhs=f32 --result=f32nchw", ["f32nchw_f32fchw_f32nchw"]),
        ("--lhs=f16nhwc --rhs=f16hwcf --result=f32nhwc", ["f16nhwc_f16hwcf_f32nhwc"]),
        ("--lhs=i8nchw", ["i8nchw_i8fchw_i32nchw"]),
    ],
)
def test_types_and_layouts_of_a_convolution(names, arguments, expected):
    """One layout of one tensor says those of the others."""
    tags = ["_".join(name.split("_")[4:7]) for name in names(*CONV[1:], *arguments.split())]
    assert tags == expected


@pytest.mark.parametrize(
    ("epilogues", "tails"),
    [
        ("none", [""]),
        ("bias", ["_bias"]),
        ("relu,bias+relu", ["_relu", "_bias_relu"]),
        ("none,gelu,sigmoid,tanh", ["", "_gelu", "_sigmoid", "_tanh"]),
        ("relu,relu,BIAS", ["_relu", "_bias"]),
        ("bias+none", ["_bias"]),
    ],
)
def test_epilogues_are_crossed_with_the_rest(names, epilogues, tails):
    """Equal ones come once."""
    every = names("--m=8", "--n=8", "--k=8", "--lhs=f32", f"--epilogue={epilogues}")
    assert every == [f"matmul_8x8x8_f32t_f32t_f32t{tail}" for tail in tails]


# -- configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--default-config"], ["--default-config=true"]])
def test_the_default_is_always_there(configurations, arguments):
    """First, beside what was shipped."""
    every = configurations(*ONE, *arguments)
    assert every[0] == "tile_config_default"
    assert len(every) > 3 and len(set(every)) == len(every)


def test_the_default_alone(configurations):
    """`--default-config=only`."""
    assert configurations(*ONE, "--default-config=only") == ["tile_config_default"]


def test_a_list_of_the_users_replaces_the_shipped_one(configurations):
    """The default is beside it all the same; the path may start at home."""
    text = "configurations:\n  - {distribution: [16, 32], vector: [4, 8, 2]}\n  - {flow: ukernels}\n"
    Path(os.environ["HOME"], "mine.yaml").write_text(text)
    every = configurations(*ONE, "--configurations=~/mine.yaml")
    assert every == ["tile_config_default", "tile_config_16x32_4x8x2", "flow_config_ukernels"]


@pytest.mark.parametrize("option", ["--split-k-slices", "--split_k_slices"])
def test_slices_split_what_can_be_split(configurations, option):
    """In both spellings; ranges as everywhere."""
    every = configurations(*ONE, "--default-config=only", f"{option}=2:4:2")
    assert every == [f"tile_config_default{tail}" for tail in ("", "_splitk2", "_splitk4")]


def test_the_reports_arguments_for_no_split_are_accepted(configurations):
    """`--split_k_mode=N/A --split_k_slices=N/A` stand in the profiler's report."""
    pasted = configurations(*ONE, "--split_k_mode=N/A", "--split_k_slices=N/A")
    assert pasted == configurations(*ONE)


def test_not_applicable_slices_are_no_slices(configurations):
    """Not even the predefined ones of a predefined problem."""
    problem = ("--m=128", "--n=128", "--k=12288", "--lhs=f32", "--default-config=true")
    assert any("splitk" in name for name in configurations(*problem))
    assert not any("splitk" in name for name in configurations(*problem, "--split_k_slices=N/A"))


def test_a_pattern_narrows_what_is_generated(run):
    """Operations and configurations; nothing else is written."""
    pattern = "matmul_16x32x8_*_default,matmul_16x32x8_.*ukernels"
    assert run("generator", *ONE, "--epilogue=none,relu", f"--dispatches={pattern}").status == 0
    names = [d.dispatch.configuration.name for _, d in load_manifest(Tree(Path())).dispatches()]
    assert names == ["tile_config_default", "flow_config_ukernels"] * 2


# -- the target ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        *("llvm-cpu", "llvm-cpu:znver4", "cuda:sm_80", "rocm:gfx942", "vulkan-spirv", "vulkan-spirv:rdna3"),
        *("metal-spirv", "vmvx", "null", "null:faults.yaml"),
    ],
)
def test_the_target_is_remembered(run, target):
    """The compiler asks the manifest for it."""
    assert f" for {target};" in run("generator", *ONE, f"--target={target}").err
    assert load_manifest(Tree(Path())).entries[0].target == target


def test_what_is_for_the_cpu_is_left_out_for_a_gpu(run):
    """Also what the user asks for by file and pattern; the default is generated."""
    Path("own.yaml").write_text(
        "configurations: [{distribution: [8, 8], vector: [8, 8, 8]}, {flow: data_tiling}]"
    )
    arguments = ("--m=16", "--n=16", "--k=16", "--lhs=f32", "--target=cuda", "--configurations=own.yaml")

    outcome = run("generator", *arguments, "--verbose")
    refused = run("generator", *arguments, "--dispatches=*_data_tiling")

    assert "Generated 1 dispatch of 1 operation for cuda:sm_80; left out 2:" in outcome.err
    assert "tile_config_8x8_8x8x8: these tiles are for llvm-cpu, but the target is cuda" in outcome.err
    assert refused.status == 2
    assert "was left out: the flow data_tiling is for llvm-cpu, but the target is cuda" in refused.err


# -- dry runs and summaries ------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(run, tmp_path):
    """It says what would be, in the same words."""
    dry = run("generator", *ONE, "--dry-run")
    assert list(Path().iterdir()) == []
    real = run("generator", *ONE)
    assert dry.out == real.out
    assert dry.err == real.err.replace("Generated", "Would generate")


def test_the_summary_counts_reasons(run):
    """On standard error, a line a reason, the most frequent ones first."""
    first, *rest = run("generator", *ONE, "--target=null").err.splitlines()
    (entry,) = load_manifest(Tree(Path())).entries
    count = sum(int(line.split(" x ")[0]) for line in rest)
    assert first == f"Generated {len(entry.dispatches)} dispatches of 1 operation for null; left out {count}:"
    counts = [int(line.split(" x ")[0]) for line in rest[:5]]
    assert counts == sorted(counts, reverse=True)


def test_verbose_names_every_dispatch_that_is_left_out(run):
    """With its reason; as many as are counted."""
    outcome = run("generator", *ONE, "--target=null", "--verbose", "--split-k-slices=3")
    first, *rest = outcome.err.splitlines()
    assert first.endswith(f"left out {len(rest)}:")
    expected = "    matmul_16x32x8_f32t_f32t_f32t_tile_config_default_splitk3: 3 slices do not divide k=8"
    assert expected in rest
    assert all(line.startswith("    matmul_16x32x8_f32t_f32t_f32t_") for line in rest)


def test_many_reasons_are_summed_up(run):
    """Five are shown, the others counted."""
    outcome = run("generator", "--m=1:9", "--n=7", "--k=5", "--lhs=f32", "--target=null", "--dry-run")
    first, *rest = outcome.err.splitlines()
    assert len(rest) == 6 and rest[-1].endswith(" other reasons; --verbose lists them all")
    assert first.endswith(f"left out {sum(int(line.split(' x ')[0]) for line in rest)}:")


@pytest.mark.parametrize(
    ("arguments", "count", "reason"),
    [
        ([*CONV, "--conv-r=3,9,10"], 1, "a point of the sweep: the filter is larger than its padded input"),
        (["--m=8", "--lhs=f32,i8", "--epilogue=gelu"], 1, "a point of the sweep: epilogue gelu needs"),
        ([*CONV, "--conv-groups=1:3"], 2, "a point of the sweep: groups must divide the input channels"),
    ],
)
def test_a_point_that_is_no_operation_is_left_out(run, arguments, count, reason):
    """The others are generated, and the reason is told."""
    outcome = run("generator", *arguments, "--default-config=only", "--verbose").checked()
    assert f"    {reason}" in outcome.err
    assert len(generated()) == count


# -- parts of a request that mean nothing -----------------------------------------------------------


def test_types_that_do_not_go_together_are_skipped_by_name(run):
    """The others are generated."""
    outcome = run(
        "generator", "--lhs=i8,f32", "--result=i32", "--problem-m=8", "--default-config=only"
    ).checked()
    assert "left out 1:" in outcome.err
    assert (
        "    --lhs=f32 --rhs=f32 --result=i32: f32 inputs need a floating-point result, but got result=i32"
        in outcome.err.splitlines()
    )
    assert generated() == ["matmul_8x256x256_i8t_i8t_i32t"]


def test_an_entry_that_fits_nothing_is_named(run):
    """A list of the wrong length is a mistake in the file, which the reason alone does not show."""
    rows = "[{distribution: [64], vector: [8, 32]}, {distribution: [8, 8], vector: [8, 8, 8]}]"
    Path("own.yaml").write_text(f"configurations: {rows}")
    outcome = run(
        "generator", "--m=8,16", "--n=8", "--k=8", "--lhs=f32", "--configurations=own.yaml"
    ).checked()
    takes = "matmul takes 2 distribution and 3 vector tiles (m, n, k), but got 1 and 2"
    assert f"    own.yaml, entry 1 (tile_config_64_8x32): {takes}" in outcome.err.splitlines()
    assert "entry 2" not in outcome.err


def test_an_entry_that_fits_something_is_not_named(run):
    """Nor is one that is for other kinds, or of a list that ships."""
    rows = (
        "[{distribution: [16, 8], vector: [16, 8, 8]}, {kinds: [conv2d], distribution: [1], vector: [1, 1]}]"
    )
    Path("own.yaml").write_text(f"configurations: {rows}")
    outcome = run("generator", "--m=8,16", "--n=8", "--k=8", "--lhs=f32", "--configurations=own.yaml")
    assert "left out 1:" in outcome.err
    assert "entry" not in outcome.err
    assert "entry" not in run("generator", "--m=8").err


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--problem-m=64:1024:128", "--problem-m: 64:1024:128 ends at 960: the next step would pass 1024"),
        ("--split-k-slices=2:5:2", "--split-k-slices: 2:5:2 ends at 4: the next step would pass 5"),
        ("--problem-m=64:192:128", ""),
    ],
)
def test_an_end_that_no_step_reaches_is_told(run, option, told):
    """The end of a range is included, where a step comes there."""
    outcome = run("generator", option, "--dry-run", "--default-config=only", "--lhs=f32")
    assert [line for line in outcome.err.splitlines() if " ends at " in line] == [told] * bool(told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--m=8", "--layout=nhwc"],
            "the layout nhwc has no effect: no generated operation is a conv2d",
        ),
        (
            ["--conv-n=1", "--layout=tn,nhwc"],
            "the layout tn has no effect: no generated operation is a matrix product",
        ),
        (["--m=8", "--layout=tn"], ""),
        (["--layout=nhwc"], ""),
    ],
)
def test_a_layout_that_no_operation_has_is_told(run, arguments, told):
    """Shapes say which kinds are generated, and not every kind has every layout."""
    outcome = run("generator", *arguments, "--dry-run", "--default-config=only", "--lhs=f32").checked()
    assert [line for line in outcome.err.splitlines() if "no effect" in line] == [told] * bool(told)


# -- how much is printed ----------------------------------------------------------------------------

#: 101 and 100 dispatches.
MANY = ("--m=1:101", "--n=8", "--k=8", "--lhs=f32", "--default-config=only", "--dry-run")
FEW = ("--m=1:100", *MANY[1:])


def test_a_large_tree_has_a_line_for_each_operation(run):
    """Each path once, with the number of its configurations."""
    lines = run("generator", *MANY).out.splitlines()
    name = "matmul_1x8x8_f32t_f32t_f32t"
    assert lines[0] == f"[Generating]: ./generated/linalg/matmul/{name}/{name}.mlir (1 configuration)"
    assert len(lines) == len(set(lines)) == 101
    assert len(run("generator", *FEW).out.splitlines()) == 200


def test_verbose_names_every_configuration_of_a_large_tree(run):
    lines = run("generator", *MANY, "--verbose").out.splitlines()
    assert lines[1::2] == ["    Emitting tuning configuration : tile_config_default"] * 101


@pytest.mark.parametrize("columns", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_no_line_is_wider_than_a_terminal_or_120_columns(columns):
    """Paths lose their middle, reasons go on in the next line; a file gets all of it."""
    arguments = (
        "--generated-dir=" + "x" * 90,
        "--conv-n=1",
        "--target=cuda",
        "--lhs=f32",
        "--dry-run",
        "--verbose",
    )
    status, shown = on_a_terminal(columns, "generator.py", *arguments)
    lines = plain(shown).replace("\r", "").splitlines()
    assert status == 0
    assert min(columns, 120) - 10 < max(map(len, lines)) <= min(columns, 120)
    assert any("..." in line and line.endswith("_g1.mlir") for line in lines)
    with open("out.txt", "wb") as file:
        on_a_terminal(columns, "generator.py", *arguments, stdout=file)
    assert max(map(len, Path("out.txt").read_text().splitlines())) > 200


def test_help_names_every_option(run):
    """And says that the end of a range is included."""
    outcome = run("generator", "--help-all").checked()
    for option in (
        "--generated-dir",
        "--problem-m",
        "--conv-groups",
        "--epilogue",
        "--configurations",
        "--dry-run",
    ):
        assert option in outcome.out
    assert "The end of a range is included" in outcome.out
    assert "--split_k_mode" not in outcome.out


def test_generating_again_adds_to_the_tree(run):
    """Two runs, two operations; the first stays."""
    run("generator", *ONE)
    before = load_manifest(Tree(Path())).entries
    run("generator", "--m=4", "--n=4", "--k=4", "--lhs=f32")
    assert load_manifest(Tree(Path())).entries[:1] == before
    assert generated() == ["matmul_16x32x8_f32t_f32t_f32t", "matmul_4x4x4_f32t_f32t_f32t"]


def test_a_reader_that_goes_leaves_a_tree_that_is_said_to_be_short():
    """`generator.py ... | head` ends it half-way: silently, the sweep would be taken for whole."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-u", str(ROOT / "generator.py"), "--target=null", "--problem-m=16,32", *ONE[1:]],
        stdout=write, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == (
        "generator.py: stopped, because standard output was closed: the tree is incomplete\n"
    )
    assert generated() == ["matmul_16x32x8_f32t_f32t_f32t"]
