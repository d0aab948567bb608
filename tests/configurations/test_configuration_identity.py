"""Configurations are values: frozen, hashable, written and read back, and named apart."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import (
    FLOWS,
    KINDS,
    Configuration,
    CpuTiles,
    Default,
    Extern,
    Flow,
    Formed,
    Microkernel,
    MmaTiles,
    SimtTiles,
    TritonRows,
    TritonTiles,
    Tuned,
    configuration_from_dict,
)
from dispatch_profiler.configurations.gpu.intrinsics import INSTRUCTIONS
from dispatch_profiler.errors import ConfigurationError

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
TILE = st.integers(1, 999)


@st.composite
def cpu_tiles(draw, tile=TILE):
    """Tiles of any rank, with and without a cache level."""
    outer = draw(st.integers(1, 4))
    rank = outer + draw(st.integers(1, 3))
    vector = draw(st.tuples(*[tile] * rank))
    cache = draw(st.just(()) | st.tuples(*[tile] * rank))
    return CpuTiles(
        draw(st.tuples(*[tile] * outer)), vector, cache, draw(st.booleans()), draw(st.integers(1, 64))
    )


@st.composite
def gpu_tiles(draw, tile=TILE):
    """Tiles with and without matrix instructions, of products and convolutions."""
    axes = draw(st.integers(2, 4))
    common = {
        "workgroup": draw(st.tuples(*[tile] * axes)),
        "reduction": draw(st.tuples(tile) | st.tuples(tile, tile, tile)),
        "stages": draw(st.integers(1, 12)),
        "shared_padding": draw(st.booleans()),
        "order": draw(st.sampled_from(["none", "transpose"])),
        "split_k": draw(st.integers(1, 64)),
        "subgroup_size": draw(st.sampled_from([32, 64])),
    }
    if draw(st.booleans()):
        pipeline = draw(st.sampled_from(["TileAndFuse", "BaseVectorize"]))
        promote = draw(st.booleans())
        return SimtTiles(**common, thread=draw(st.tuples(*[tile] * axes)), promote=promote, pipeline=pipeline)
    return MmaTiles(
        **common,
        subgroups=draw(st.just(()) | st.tuples(*[tile] * axes)),
        instruction=draw(st.sampled_from(INSTRUCTIONS)),
        shape=draw(st.just(()) | st.tuples(tile, tile, tile)),
        pipeline=draw(st.sampled_from(["TileAndFuse", "VectorDistribute"])),
        accumulator=draw(st.sampled_from(["", "f16", "bf16"])),
    )


MMA = MmaTiles(workgroup=(64, 64), reduction=(32,))
SIMT = SimtTiles(workgroup=(64, 64), reduction=(16,), thread=(4, 8))
TRITON = TritonTiles(tile=(128, 256, 64))
ROWS = TritonRows(block=(2, 1024))
MICROKERNEL = Microkernel(distribution=(14, 64), registers=(2, 7, 32))
EXTERN = Extern(label="mine", object="k.ptx", entry="k", workgroups=("m", 4), workgroup_size=(256,))


@st.composite
def microkernels(draw):
    """Any that can be written, whether an operation has these tiles or not."""
    return Microkernel(
        distribution=draw(st.tuples(TILE, TILE)),
        registers=draw(st.tuples(TILE, TILE, TILE)),
        unroll=draw(st.sampled_from([2, 4, 8])),
        margin=draw(st.sampled_from([0, 16])),
        packed=draw(st.booleans()),
    )


@st.composite
def triton_tiles(draw):
    """Any that can be written, whether they fit a device or not."""
    return TritonTiles(
        tile=draw(st.tuples(TILE, TILE, TILE)),
        warps=draw(st.integers(1, 32)),
        stages=draw(st.integers(1, 12)),
        group=draw(st.integers(1, 64)),
        persistent=draw(st.integers(0, 264)),
        descriptors=draw(st.booleans()),
        precision=draw(st.sampled_from(["ieee", "tf32x3", "bf16x6", "tf32"])),
        split_k=draw(st.integers(1, 64)),
        windows_only=draw(st.booleans()),
        joined=draw(st.booleans()),
        swapped=draw(st.booleans()),
    )


CONFIGURATIONS = (
    triton_tiles()
    | microkernels()
    | st.just(EXTERN)
    | st.builds(TritonRows, block=st.tuples(TILE, TILE), warps=st.integers(1, 64), stages=st.integers(1, 9))
    | gpu_tiles()
    | cpu_tiles()
    | st.builds(Default, st.integers(1, 64))
    | st.sampled_from([Flow(x) for x in FLOWS])
)
FORMED = Formed("im2col", CpuTiles((64, 128), (8, 32, 4)))
TUNED = Tuned(FORMED, ("--iree-opt-level=O3",), "conv2d_of_another_shape")


@PROPERTY
@given(CONFIGURATIONS)
def test_a_configuration_is_read_back_from_its_dict(configuration):
    """Through JSON too, where tuples become lists."""
    assert configuration == configuration_from_dict(configuration.to_dict())
    assert configuration == configuration_from_dict(json.loads(json.dumps(configuration.to_dict())))


@PROPERTY
@given(CONFIGURATIONS)
def test_equal_configurations_are_one_key(configuration):
    """Identity is the frozen object."""
    assert {configuration: 1} == {dataclasses.replace(configuration): 1}


@PROPERTY
@given(CONFIGURATIONS, st.data())
def test_a_configuration_is_frozen(configuration, data):
    """No field can be set."""
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(configuration)]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(configuration, field, getattr(configuration, field))


@PROPERTY
@given(CONFIGURATIONS, CONFIGURATIONS)
def test_two_configurations_share_a_name_only_if_they_are_equal(one, other):
    """Of any kinds."""
    assert (one == other) == (one.name == other.name)


def test_no_two_small_configurations_share_a_name():
    """Every one with tiles of 1 and 11, where digits could run together, and every kind beside."""
    few = (1, 11)
    made = [
        CpuTiles(outer, vector, cache, peel, split)
        for outer in itertools.product(few, repeat=2)
        for vector in itertools.product(few, repeat=3)
        for cache in ((), *itertools.product(few, repeat=3))
        for peel, split in itertools.product((False, True), (1, 2, 11))
    ]
    longer = [CpuTiles((1,), (1, 1), (1, 1)), CpuTiles((1,), (1, 1)), CpuTiles((1, 1, 1), (1, 1, 1, 1))]
    others = [Default(), Default(2), Default(11), *map(Flow, FLOWS), *longer]
    assert len(made) + len(others) == len({each.name for each in (*made, *others)})


def test_names_tell_every_field():
    """One field changed, another name."""
    mma = {"subgroups": (1, 4), "instruction": "mfma", "shape": (16, 16, 16), "pipeline": "VectorDistribute",
           "workgroup": (64, 128), "reduction": (64,), "stages": 5, "shared_padding": False,
           "order": "transpose", "split_k": 2, "subgroup_size": 64, "accumulator": "f16"}  # fmt: skip
    simt = {"thread": (8, 4), "promote": False, "pipeline": "BaseVectorize"}
    simt |= {name: mma[name] for name in ("workgroup", "reduction", "stages", "shared_padding", "order", "split_k", "subgroup_size")}  # fmt: skip
    triton = {"tile": (128, 256, 32), "warps": 4, "stages": 4, "group": 1, "persistent": 132,
              "descriptors": True, "precision": "tf32x3", "l1": True, "split_k": 4, "windows_only": True,
              "joined": True, "swapped": True}  # fmt: skip
    rows = {"block": (2, 512), "warps": 8, "stages": 1}
    microkernel = {"distribution": (7, 64), "registers": (1, 7, 32), "unroll": 8, "margin": 16}
    microkernel["packed"] = True
    kinds = (MMA, mma), (SIMT, simt), (TRITON, triton), (ROWS, rows), (MICROKERNEL, microkernel)
    for base, changes in kinds:
        assert set(changes) == {field.name for field in dataclasses.fields(base)}
        names = {dataclasses.replace(base, **{name: value}).name for name, value in changes.items()}
        assert len(names | {base.name}) == len(changes) + 1


@PROPERTY
@given(CONFIGURATIONS)
def test_a_name_is_part_of_an_mlir_symbol(configuration):
    """Letters, digits and underscores, so that nothing needs quoting anywhere."""
    assert configuration.name.isidentifier()


def test_data_of_every_kind_tells_its_kind():
    """The key under which it is found again."""
    examples = [
        Default(),
        CpuTiles((1,), (1, 1)),
        MICROKERNEL,
        Flow("ukernels"),
        MMA,
        SIMT,
        TRITON,
        ROWS,
        EXTERN,
        FORMED,
        TUNED,
    ]
    assert list(KINDS) == [each.to_dict()["kind"] for each in examples]


@PROPERTY
@given(CONFIGURATIONS)
def test_columns_of_the_report_are_those_that_the_kind_announces(configuration):
    """In their order, so that a report can have them before any row."""
    assert list(configuration.field_names) == list(configuration.fields())


def test_an_unknown_kind_is_refused_with_the_nearest():
    """As with operations."""
    with pytest.raises(ConfigurationError, match=r"^unknown configuration kind 'cpu_tile'$") as caught:
        configuration_from_dict({"kind": "cpu_tile"})
    assert caught.value.hint == f"did you mean 'cpu_tiles'? Available: {', '.join(KINDS)}"


def test_data_that_is_no_configuration_is_refused_as_such():
    """A tile of 0 in a damaged file is the same mistake as in a list of configurations."""
    data = CpuTiles((64, 128), (8, 32, 4)).to_dict()
    with pytest.raises(ConfigurationError, match="vector: every tile must be"):
        configuration_from_dict({**data, "vector": [8, 0, 4]})
    with pytest.raises(ConfigurationError, match="unknown flow 'none'"):
        configuration_from_dict({"kind": "flow", "flow": "none"})


def test_a_tuned_configuration_is_read_back():
    """With its flags and its origin; it is another configuration than the one that it holds."""
    assert configuration_from_dict(json.loads(json.dumps(TUNED.to_dict()))) == TUNED
    assert TUNED.fields() == {"tuned": FORMED.name, "tuned_from": TUNED.tuned_from, **FORMED.fields()}
    assert TUNED != FORMED


def test_a_tuned_configuration_asks_its_own_for_everything_that_a_configuration_can_be_asked():
    """Otherwise it would silently have a default: another kernel, or the peak of other units."""
    of_the_kind = {"from_yaml", "yaml_keys", "yaml_field", "space", "spaces", "packed_spaces", "likely"}
    asked = {name for name in vars(Configuration) if not name.startswith("_")}
    assert asked - vars(Tuned).keys() == of_the_kind


def test_a_tuned_configuration_is_not_tuned_again_and_not_the_kernel_of_a_form():
    for make in (lambda: Tuned(TUNED), lambda: Formed("im2col", TUNED)):
        with pytest.raises(ConfigurationError):
            make()
