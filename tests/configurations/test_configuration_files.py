"""Lists of configurations: the shipped one, and what users write, with every mistake in it."""

from __future__ import annotations

import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import (
    AttentionMicrokernel,
    CpuTiles,
    Default,
    Flow,
    Formed,
    Int4Microkernel,
    Limits,
    ListedConfiguration,
    Microkernel,
    MmaTiles,
    SimtTiles,
    load_configurations,
    shipped_configurations,
)
from dispatch_profiler.configurations import rejection_reason as why_not
from dispatch_profiler.configurations.kinds import KINDS as CONFIGURATION_KINDS
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import (
    KINDS,
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    LayerNormWeightBackward,
    Matmul,
)
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Sweep, sweep_workload

TILES = "distribution: [64, 128], vector: [8, 32, 4]"
#: Keys that mark the kind of an entry.
KEYS = ", ".join([*(kind.yaml_key for kind in CONFIGURATION_KINDS.values() if kind.yaml_key), "list"])
SHIPPED = shipped_configurations("llvm-cpu")


def load(text, tmp_path):
    """Write `text` into a file of the user's and read it."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return load_configurations(file)


def entries(*rows):
    """A file with these entries, one a line."""
    return "configurations:\n" + "".join(f"  - {row}\n" for row in rows)


def rejection(text, tmp_path):
    """What is said of a file that cannot be read."""
    with pytest.raises(ConfigurationError) as caught:
        load(text, tmp_path)
    return caught.value


# -- what ships ------------------------------------------------------------------------------------


def test_the_shipped_list_loads():
    """All its entries are different, and tiles, forms and flows are there."""
    kinds = {type(entry.configuration) for entry in SHIPPED}
    assert {CpuTiles, Formed, Flow, AttentionMicrokernel, Int4Microkernel} == kinds
    assert len(SHIPPED) == len(set(SHIPPED)) > 10


# A vector, a problem that nothing divides, and the predefined ones.
PROBLEMS = (*sweep_workload(Sweep()).workload.operations, Matmul(1, 1024, 1024), Matmul(100, 100, 100),
            Matmul(128, 768, 768, rhs_layout="n"), BatchMatmul(2, 128, 128, 64, rhs_layout="n"),
            Matmul(9, 31, 5), Conv2d(1, 13, 13, 3, 10, 3, 3), Conv2d(1, 35, 35, 16, 48, 3, 3),
            LayerNormWeightBackward(100, 100), BiasBackward(100, 100))  # fmt: skip


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.configuration.name)
def test_every_shipped_entry_is_valid_for_some_problem(entry):
    """On the narrowest CPU that the list is for: 256 bits. An entry that fits nothing would only be left out."""
    limits = Limits(max_vector_bytes=512 * 32)
    assert any(
        entry.is_for(operation) and entry.configuration.invalid_reason(operation, limits) is None
        for operation in PROBLEMS
    )


@pytest.mark.parametrize(
    "operation",
    [op for op in sweep_workload(Sweep()).workload.operations if op.kind not in ("conv1d", "conv3d")],
    ids=lambda op: op.name,
)
def test_every_predefined_operation_that_tiles_support_has_a_shipped_configuration(operation):
    """There is something to compare the compiler's choice with."""
    reasons = [
        each.configuration.invalid_reason(operation, Limits()) for each in SHIPPED if each.is_for(operation)
    ]
    assert None in reasons


def test_a_family_without_a_list_has_no_entries():
    """Its default is still there, which needs no list."""
    assert shipped_configurations("abacus") == ()


# -- lists for GPUs ---------------------------------------------------------------------------------

#: The names in the IREE dispatch profiler's documentation.
DOCUMENT = (
    "tile_config_128x128_64x4_tensorcore_mmasync",
    "tile_config_128x128_32x5_tensorcore_mmasync",
    "tile_config_128x64_32x5_tensorcore_mmasync",
    "tile_config_64x64_64x5_tensorcore_mmasync",
    "tile_config_64x64_32x10_tensorcore_mmasync",
    "tile_config_128x256_32x3_tensorcore_mmasync",
    "tile_config_128x128_16x5_tensorcore_mmasync",
)


def test_the_original_tiles_have_their_names():
    """7 for f16, 9 for f32; the documented names are among them."""
    names = {entry.configuration.name: entry for entry in shipped_configurations("original")}
    assert len(names) == 16
    assert set(DOCUMENT) <= set(names)
    assert names[DOCUMENT[-1]].types == ("f32",)


GPU_TARGETS = ["cuda:sm_80", "cuda:sm_89", "rocm:gfx942", "rocm:gfx1100", "rocm:gfx1201", "vulkan-spirv:rdna3",
               "vulkan-spirv", "metal-spirv"]  # fmt: skip


@pytest.mark.parametrize("name", GPU_TARGETS)
def test_a_gpu_has_shipped_configurations_for_a_matmul(name):
    """Beside the compiler's own choice."""
    target = parse_target(name)
    operation = Matmul(1024, 1024, 1024)
    entries = shipped_configurations(target.shipped_list)
    reasons = [why_not(e.configuration, operation, target.limits) for e in entries if e.is_for(operation)]
    assert None in reasons


@pytest.mark.parametrize("name", ["cuda", "rocm", "vulkan-spirv"])
def test_every_entry_for_gpus_is_right_for_some_target(name):
    """An entry that nothing takes would only be left out; f32 on tensor cores is there to be refused."""
    limits = [parse_target(each).limits for each in GPU_TARGETS if each.startswith(name)]
    for entry in shipped_configurations(name):
        types = [ElementTypes(*t) for t in (("f16",) * 3, ("bf16",) * 3, ("f32",) * 3, ("f64",) * 3,
                 ("i8", "i8", "i32"), ("f8", "f8", "f32"))]  # fmt: skip
        operations = [Matmul(512, 512, 512, t) for t in types]
        operations += [
            Conv2d(8, h, w, 64, 128, 3, 3, types=t) for t in types for h, w in ((34, 66), (58, 58))
        ]
        fitting = [op for op in operations if entry.is_for(op)]
        reasons = [why_not(entry.configuration, op, each) for op in fitting for each in limits]
        assert None in reasons or entry.types == ("f32",), (entry.configuration.name, reasons)


def test_a_list_may_take_in_another(tmp_path):
    """Narrowed or not, in its place."""
    rows = load(entries("{default: true}", "{list: original, types: [f16]}"), tmp_path)
    assert rows[0] == ListedConfiguration(Default())
    assert [row.configuration for row in rows[1:]] == [
        e.configuration for e in shipped_configurations("original")
    ]
    assert {row.types for row in rows[1:]} == {("f16",)}


# -- what users write ------------------------------------------------------------------------------


def test_a_file_is_read_in_its_order(tmp_path):
    """Every kind of entry, with every key."""
    gpu = "workgroup: [128, 64], reduction: [32]"
    text = entries(
        f"{{instruction: mfma, {gpu}, stages: 3, subgroups: [2, 1], shape: [32, 32, 8], shared_padding: false}}",
        f"{{thread: [4, 8], {gpu}, promote: false, split_k: 2}}",
        "{kinds: [matmul, batch_matmul], types: [f32, f8], distribution: [64, 128], vector: [8, 32, 4]}",
        f"{{kinds: matmul, {TILES}, cache: [8, 128, 256], peel: true, split_k: 4}}",
        "{microkernel: [2, 7, 32], distribution: [7, 64]}",
        "{microkernel: [2, 7, 32], distribution: [7, 64], unroll: 8, margin: 16}",
        "{flow: data_tiling}",
        "{default: true}",
        "{default: true, split_k: 16}",
    )
    mfma = MmaTiles(
        workgroup=(128, 64),
        reduction=(32,),
        stages=3,
        subgroups=(2, 1),
        instruction="mfma",
        shape=(32, 32, 8),
        shared_padding=False,
    )
    assert load(text, tmp_path) == (
        ListedConfiguration(mfma),
        ListedConfiguration(
            SimtTiles(workgroup=(128, 64), reduction=(32,), thread=(4, 8), promote=False, split_k=2)
        ),
        ListedConfiguration(CpuTiles((64, 128), (8, 32, 4)), ("matmul", "batch_matmul"), ("f32", "f8E4M3FN")),
        ListedConfiguration(CpuTiles((64, 128), (8, 32, 4), (8, 128, 256), True, 4), ("matmul",)),
        ListedConfiguration(Microkernel((7, 64), (2, 7, 32))),
        ListedConfiguration(Microkernel((7, 64), (2, 7, 32), 8, 16)),
        ListedConfiguration(Flow("data_tiling")),
        ListedConfiguration(Default()),
        ListedConfiguration(Default(16)),
    )


def test_a_file_may_be_json(tmp_path):
    """JSON is YAML."""
    text = '{"configurations": [{"flow": "ukernels"}, {"distribution": [1], "vector": [1, 1]}]}'
    assert (ListedConfiguration(Flow("ukernels")), ListedConfiguration(CpuTiles((1,), (1, 1)))) == load(
        text, tmp_path
    )


def test_an_empty_list_is_a_list(tmp_path):
    """It leaves the compiler's default alone in the running."""
    assert load("configurations: []", tmp_path) == ()


def test_an_entry_is_for_the_kinds_and_types_that_it_names():
    """Both narrow it; without them it is for everything."""
    f16 = ElementTypes("f16", "f16", "f32")
    wide, narrow, batched = Matmul(1, 1, 1), Matmul(1, 1, 1, f16), BatchMatmul(1, 1, 1, 1, f16)
    rows = [ListedConfiguration(Default()), ListedConfiguration(Default(), kinds=("matmul",)), ListedConfiguration(Default(), types=("f16",)),
            ListedConfiguration(Default(), ("matmul",), ("f16",))]  # fmt: skip
    expected = [[True, True, True], [True, True, False], [False, True, True], [False, True, False]]
    assert expected == [[row.is_for(op) for op in (wide, narrow, batched)] for row in rows]


ENTRY_MISTAKES = [
    ("5", "expected keys and values, but got 5", ""),
    ("{1: 2}", "expected keys and values, but got {1: 2}", ""),
    ("", "expected keys and values, but got None", ""),
    ("{kinds: [matmul]}", f"needs one of {KEYS}", ""),
    ("{}", f"needs one of {KEYS}", ""),
    (
        "{distribution: [64, 128], vectr: [8, 32, 4]}",
        "unknown key 'vectr'",
        "did you mean 'vector'? Available: kinds, types, distribution, vector, cache, peel, split_k",
    ),
    (
        "{flow: data_tiling, split_k: 2}",
        "unknown key 'split_k'",
        "available: kinds, types, flow",
    ),
    (
        "{defalt: true}",
        "unknown key 'defalt'",
        f"did you mean 'default'? Available: kinds, types, {KEYS}",
    ),
    ("{flow: data-tiling}", "unknown flow 'data-tiling'",
     "did you mean 'data_tiling'? Available: data_tiling, ukernels, inner_tiled, tiled_convolutions, fused_padding"),
    ("{flow: 5}", "unknown flow 5", "available: data_tiling, ukernels, inner_tiled, tiled_convolutions, fused_padding"),
    ("{instruction: mmasync, workgroup: [8, 8]}", "'instruction' also needs 'reduction'", ""),
    ("{thread: [1, 1], reduction: [8]}", "'thread' also needs 'workgroup'", ""),
    ("{instruction: mmasync, workgroup: 8, reduction: [8]}", "workgroup must be a list of tiles, but got 8", ""),
    (
        "{instruction: mma, workgroup: [8, 8], reduction: [8]}",
        "unknown instruction 'mma'",
        "did you mean 'wmma'? Available: mmasync, wmma, mfma, wmmar3, wmmar4, wmma1250",
    ),
    ("{thread: [1, 1], workgroup: [8], reduction: [8]}", "thread needs a tile for each tile of workgroup, but got [1, 1], [8]", ""),
    ("{list: cude}", "unknown list 'cude'", "did you mean 'cuda'? Available: cuda, cuda-sm_90, llvm-cpu, original, rocm, triton, vulkan-spirv"),
    ("{default: true, split_k: 0}", "split_k must be a whole number of at least 1, but got 0", ""),
    ("{default: true, split_k: true}", "split_k must be a whole number of at least 1, but got True", ""),
    ("{distribution: [64, 128]}", "'distribution' also needs 'vector'", ""),
    ("{microkernel: [2, 4, 32]}", "'microkernel' also needs 'distribution'", ""),
    (
        "{microkernel: [2, 4, 32], distribution: [4, 64], vector: [8, 32, 4]}",
        "unknown key 'vector'",
        "available: kinds, types, microkernel, distribution, unroll, margin, packed, lanes, pairs, rounds",
    ),
    ("{distribution: 64, vector: [8, 32]}", "distribution must be a list of tiles, but got 64", ""),
    ("{distribution: [64], vector: 8x32}", "vector must be a list of tiles, but got '8x32'", ""),
    (f"{{{TILES}, cache: null}}", "cache must be a list of tiles, but got None", ""),
    (f"{{{TILES}, peel: 1}}", "peel must be true or false, but got 1", ""),
    (f"{{{TILES}, split_k: two}}", "split_k must be a whole number of at least 1, but got 'two'", ""),
    (
        "{distribution: [64, 128], vector: [8, 32.5, 4]}",
        "vector: every tile must be a whole number of at least 1, but got [8, 32.5, 4]",
        "",
    ),
    (f"{{{TILES}, cache: [8]}}", "cache needs as many tiles as vector, but got [8], [8, 32, 4]", ""),
    (f"{{{TILES}, kinds: 5}}", "kinds must be a list of names, but got 5", ""),
    (f"{{{TILES}, kinds: [matmul, 5]}}", "kinds must be a list of names, but got ['matmul', 5]", ""),
    (f"{{{TILES}, types: {{f32: 1}}}}", "types must be a list of names, but got {'f32': 1}", ""),
    (
        f"{{{TILES}, kinds: [conv2]}}",
        "unknown name 'conv2' under kinds",
        "did you mean 'conv2d'? Available: " + ", ".join(KINDS),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message", "hint"), ENTRY_MISTAKES)
def test_a_mistake_in_an_entry_is_refused_with_its_place(row, message, hint, tmp_path):
    """File, entry and key, the rule and the value; the entry before it is fine."""
    error = rejection(entries(f"{{{TILES}}}", row), tmp_path)
    assert (f"{tmp_path / 'mine.yaml'}, entry 2: {message}", hint) == (str(error), error.hint)


def test_an_unknown_type_is_refused_with_its_place_and_key(tmp_path):
    """The key is `types`, and the hint names the nearest type."""
    error = rejection(entries(f"{{{TILES}, types: [f32, bf17]}}"), tmp_path)
    assert str(error).startswith(f"{tmp_path / 'mine.yaml'}, entry 1: ")
    assert "'bf17'" in str(error)
    assert error.hint.startswith("did you mean 'bf16'?")
    assert "types" in str(error)


@pytest.mark.parametrize("row", ["{vector: [8, 32, 4]}", "{split_k: 4}", "{peel: true, cache: [8, 8, 8]}"])
def test_an_entry_whose_first_key_was_forgotten_is_told_so(row, tmp_path):
    """`vector` is no unknown key: what lacks is `distribution` beside it."""
    assert f"needs one of {KEYS}" in str(rejection(entries(row), tmp_path))


@pytest.mark.parametrize("value", ["false", "null", "5", "[1]"])
def test_a_default_is_true_or_not_written(value, tmp_path):
    """`default: false` must not mean the default."""
    assert "entry 1: default must be true" in str(rejection(entries(f"{{default: {value}}}"), tmp_path))


@pytest.mark.parametrize("text", ["", "5", "[]", "configurations:", "configurations: 5", "other: []"])
def test_a_file_without_a_list_is_refused_with_an_example(text, tmp_path):
    """The hint shows how a list begins."""
    error = rejection(text, tmp_path)
    assert f"{tmp_path / 'mine.yaml'} has no list under 'configurations'" == str(error)
    assert "such as '- {distribution: [64, 128], vector: [8, 32, 4]}'" in error.hint


@pytest.mark.parametrize("text", ["configurations: [", "{a: b: c}", "a:\n\t- b", "configurations: }"])
def test_a_file_that_is_not_yaml_is_refused_in_one_line(text, tmp_path):
    """With the place that the YAML reader gives."""
    error = rejection(text, tmp_path)
    assert str(error).startswith(f"{tmp_path / 'mine.yaml'} is not valid YAML: ")
    assert "line " in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "value", ["2026-99-99", "0b_", "1__:2_", "!!int x", "!!timestamp never"]
)  # fmt: skip
def test_a_value_that_yaml_cannot_convert_is_refused_with_the_file(value, tmp_path):
    """A day that does not exist is the reader's ValueError, but the user's mistake."""
    assert str(tmp_path / "mine.yaml") in str(rejection(entries(f"{{flow: {value}}}"), tmp_path))


def test_a_file_that_is_missing_is_refused_with_its_path(tmp_path):
    """And with the system's own reason."""
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigurationError, match="No such file") as caught:
        load_configurations(path)
    assert str(caught.value).startswith(f"cannot read {path}: ")


def test_a_folder_is_no_file(tmp_path):
    """Refused as a file that cannot be read."""
    with pytest.raises(ConfigurationError, match=r"cannot read .*: it is a directory"):
        load_configurations(tmp_path)


def test_a_file_that_is_not_utf_8_is_refused_with_its_path(tmp_path):
    """Bytes that are no text."""
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"configurations: [\xff\xfe]")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text: byte 17 is 0xff"):
        load_configurations(path)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file(tmp_path):
    """It has no writer: opening it as an ordinary file would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=r"cannot read .*pipe: it is a named pipe"):
        load_configurations(tmp_path / "pipe")


HUGE = 2**63 - 1
BOUNDED = [
    (f"{{distribution: {[1] * 17}, vector: [1, 1]}}", "distribution has 17 tiles, but at most 16 are allowed"),
    ("{flow: %s}" % ("x" * 9000), "unknown flow 'xxx"),
    ("{extern: %s, object: k, entry: e, workgroups: [1], workgroup_size: [1]}" % ("x" * 101), "name must be letters"),
    ("{extern: x, object: k, entry: e, workgroups: [%s], workgroup_size: [1]}" % ("(" * 9000), "an expression has more"),
    ("{extern: x, object: k, entry: e, workgroups: ['%s'], workgroup_size: [1]}" % ("(" * 200), "is not an expression"),
    ('{extern: x, object: k, entry: e, workgroups: ["1\\0"], workgroup_size: [1]}', "is not an expression"),
    (str([1] * 9000), "expected keys and values, but got [1, 1"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), BOUNDED, ids=[message for _, message in BOUNDED])
def test_what_is_beyond_all_measure_is_refused_in_a_short_sentence(row, message, tmp_path):
    error = rejection(entries(row), tmp_path)
    assert message in str(error)
    assert len(str(error)) < 700


def test_a_tile_as_large_as_a_number_may_be_is_left_out_with_a_reason(tmp_path):
    """It is a number, and fits nothing."""
    (row,) = load(entries(f"{{distribution: [{HUGE}, 1], vector: [{HUGE}, 1, 1]}}"), tmp_path)
    assert f"vector tile {HUGE} exceeds m=8" == row.configuration.invalid_reason(Matmul(8, 8, 8), Limits())


def test_a_short_file_stands_for_a_bounded_number_of_configurations(tmp_path):
    """Each line may name a list of many."""
    text = entries(*["{list: original}"] * 700)
    assert "has more than 10000 configurations" in str(rejection(text, tmp_path))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
VALID = [
    {"distribution": [64, 64], "vector": [8, 32, 4], "cache": [8, 32, 4], "peel": False, "split_k": 1},
    {"instruction": "mmasync", "workgroup": [64, 64], "reduction": [32], "stages": 1, "subgroups": [2, 2], "shape": [],
     "pipeline": "VectorDistribute", "order": "none", "accumulator": "", "subgroup_size": 32, "shared_padding": True},
    {"thread": [4, 4], "workgroup": [64, 64], "reduction": [32], "promote": True, "stages": 1, "split_k": 2},
    {"triton": [64, 64, 64], "warps": 4, "stages": 3, "group": 1, "persistent": 0, "descriptors": True,
     "precision": "ieee", "split_k": 1},
    {"extern": "mine", "object": "k.ptx", "entry": "kernel", "workgroups": ["ceildiv(m, 8)"], "workgroup_size": [32],
     "shared_memory": 0, "target_arch": "sm_80", "spare_bindings": [1]},
    {"list": "original", "kinds": ["matmul"], "types": ["f16"]},
    {"flow": "ukernels"},
    {"default": True, "split_k": 2},
]  # fmt: skip


@st.composite
def damaged_rows(draw):
    """A valid entry in which a few values are something else."""
    row = dict(draw(st.sampled_from(VALID)))
    for key in draw(st.lists(st.sampled_from([*row, "kinds", "types"]), max_size=2)):
        row[key] = draw(JUNK | st.sampled_from([[8, 32], [-1], [0, 1, 2], "m // 0", [["m"]], "f32", 2**40]))
    return row


@given(st.lists(damaged_rows() | JUNK, max_size=3))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_an_entry_says_it_is_a_configuration_or_one_sentence(tmp_path, rows):
    """Wrong types included; what is read can be asked whether it fits."""
    try:
        found = load(yaml.safe_dump({"configurations": rows}), tmp_path)
    except ConfigurationError as error:
        assert "\n" not in str(error)
        return
    for entry in found:
        for limits in (Limits(), parse_target("cuda:sm_90").limits):
            reason = entry.configuration.invalid_reason(Matmul(64, 64, 64), limits)
            assert reason is None or entry.configuration.name
