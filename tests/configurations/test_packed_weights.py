"""Packed weights: what a form does to the weight alone comes first, and the rest reads nothing else of the weight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from form_interpreter import computed

from dispatch_profiler.configurations import (
    FORMS,
    CpuTiles,
    Default,
    Formed,
    Limits,
    configuration_from_dict,
    load_configurations,
    spaces,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Contraction, Conv1d, Conv2d, Epilogue, Matmul
from dispatch_profiler.targets import fastest_form, parse_target

FHWC = "nhwc_fhwc_nhwc"
TILES = CpuTiles((4, 4), (2, 4, 2))
OPERATIONS = (
    Matmul(64, 96, 16, rhs_layout="n", epilogue=Epilogue.parse("bias")),
    Matmul(64, 96, 16),
    Conv1d(1, 9, 3, 4, 3, layout="ncw"),
    Conv2d(1, 6, 5, 3, 64, 3, 3, padding=(1, 1), layout=FHWC),
    Conv2d(2, 6, 5, 3, 96, 1, 1, layout=FHWC),
    Conv2d(1, 6, 6, 4, 6, 3, 3, groups=2, layout=FHWC),
    Conv2d(1, 7, 7, 64, 5, 3, 3, stride=(2, 2), padding=(1, 1), layout=FHWC, mode="input_backward"),
    Conv2d(1, 6, 6, 3, 5, 3, 3, padding=(1, 1), layout="nchw", mode="input_backward"),
)
PACKED = [
    (form, operation)
    for form, operation in itertools.product(FORMS, OPERATIONS)
    if Formed(form, packed=True).invalid_reason(operation, Limits()) is None
]


def test_every_form_that_prepares_a_weight_is_among_the_cases():
    assert {form for form, _ in PACKED} == {*FORMS} - {"taps", "transposed", "transposed_panels"}


@pytest.mark.parametrize(("form", "operation"), PACKED, ids=lambda each: getattr(each, "name", each))
def test_packing_reads_the_weight_alone_and_the_rest_reads_only_what_is_packed(form, operation: Contraction):
    """numpy packs without lhs, then computes without rhs: it gets the sums of the operation all the same."""
    rng = np.random.default_rng(3)
    lhs, rhs = (rng.integers(-4, 5, each.shape).astype(np.float64) for each in operation.operands[:2])
    reduction = Formed(form, packed=True).reduced(operation)
    ends = [index for index, step in enumerate(reduction.steps, 1) if getattr(step, "packs", False)]
    packing, rest = reduction.steps[: ends[-1]], reduction.steps[ends[-1] :]

    at_load_time = computed(packing, {"rhs": rhs})
    packed = {step.result.name: at_load_time[step.result.name] for step in packing[ends[0] - 1 :]}
    sums = computed(rest, {"lhs": lhs, **packed})[reduction.sums.name]

    assert np.allclose(sums, operation.contract(lhs, rhs), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(("form", "operation"), PACKED, ids=lambda each: getattr(each, "name", each))
def test_kernels_and_error_bounds_are_those_of_the_form(form, operation):
    plain, packed = Formed(form), Formed(form, packed=True)

    assert packed.reduced(operation).kernels == plain.reduced(operation).kernels
    assert packed.error_bound(operation) == plain.error_bound(operation)


@pytest.mark.parametrize(
    ("form", "operation", "reason"),
    [
        (
            "permuted",
            BatchMatmul(2, 16, 16, 8, rhs_layout="n"),
            "each product of the batch has a right operand of its own",
        ),
        ("im2col", Conv2d(1, 6, 6, 3, 5, 3, 3, mode="weight_backward"), "it computes the weight's gradient"),
        ("im2col", Conv2d(1, 6, 6, 3, 5, 3, 3, layout=FHWC), "reads the weight as it is stored"),
        ("transposed", Matmul(16, 16, 8, rhs_layout="n"), "reads the weight as it is stored"),
    ],
)
def test_what_has_nothing_to_pack_says_so(form, operation, reason):
    assert reason in Formed(form, packed=True).invalid_reason(operation, Limits())
    assert Formed(form).invalid_reason(operation, Limits()) is None


def test_names_files_and_plain_data_tell_packed_from_unpacked(tmp_path):
    packed, plain = Formed("blocked", TILES, packed=True), Formed("blocked", TILES)
    (tmp_path / "own.yaml").write_text(
        "configurations:\n"
        "  - {form: blocked, packed: true, distribution: [4, 4], vector: [2, 4, 2]}\n"
        "  - {form: winograd, packed: true}\n"
    )
    listed = [each.configuration for each in load_configurations(tmp_path / "own.yaml")]

    assert packed.name == "tile_config_packed_blocked_4x4_2x4x2"
    assert listed == [packed, Formed("winograd", packed=True)]
    assert configuration_from_dict(packed.to_dict()) == packed != plain
    # What earlier versions have written is still the unpacked form.
    assert plain.to_dict() == {"kind": "formed", "form": "blocked", "inner": TILES.to_dict()}
    assert (packed.packs_weight, plain.packs_weight, Default().packs_weight) == (True, False, False)


def test_a_constant_filter_is_packed_where_permuting_it_took_too_long():
    """With few pixels, the fastest form reads the filter as it is stored, unless it can be packed before."""
    target = parse_target("llvm-cpu:skylake-avx512")
    few = Conv2d(1, 7, 7, 512, 512, 3, 3, padding=(1, 1), layout=FHWC)

    assert fastest_form(few, target).form == "im2col_t32"
    assert fastest_form(few, target, packed_weights=True).form == "im2col"
    for operation in OPERATIONS:
        assert fastest_form(operation, target, packed_weights=True) == fastest_form(operation, target)


def test_packed_is_true_or_false(tmp_path):
    (tmp_path / "own.yaml").write_text("configurations:\n  - {form: permuted, packed: maybe}\n")

    with pytest.raises(ConfigurationError, match="packed"):
        load_configurations(tmp_path / "own.yaml")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_nothing_packs_a_weight_unless_asked(operation):
    """Neither the generator's fastest form nor a search space: a library would apply it to weights that change."""
    target = parse_target("llvm-cpu")
    rng = np.random.default_rng(1)
    form = fastest_form(operation, target)

    assert form is None or not form.packs_weight
    for space in spaces(operation, target.limits):
        assert not space.to_configuration(space.draw(rng)).packs_weight
