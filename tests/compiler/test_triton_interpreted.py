"""What the Triton kernels compute, in Triton's interpreter, against the numpy references."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from epilogue_helpers import OF_ROWS, SEQUENCES, SIMPLE, STEP_TEXTS

from dispatch_profiler.configurations import TritonRows, TritonTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.operations.norm.normalization import affine_suffix
from dispatch_profiler.targets import parse_target

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="the interpreter takes torch's tensors")

HERE = Path(__file__).parent
LIMITS = parse_target("cuda:sm_90").limits
F16, F32_OF_F16 = ElementTypes("f16", "f16", "f16"), ElementTypes("f16", "f16", "f32")
TO_BF16, F8, I8 = (
    ElementTypes("f32", "f32", "bf16"),
    ElementTypes("f8", "f8", "f32"),
    ElementTypes("i8", "i8", "i32"),
)
SMALL = TritonTiles(tile=(16, 32, 32), warps=4, group=2)
TMA = replace(SMALL, descriptors=True)
LAYOUTS = [(x, y) for x in "tn" for y in "tn"]
#: Neither a multiple of a tile: one below, one above.
ODD = {"m": 33, "n": 63, "k": 65}
#: Rows of 16 bytes, as descriptors need them, and still no multiple of a tile.
ALIGNED = {"m": 24, "n": 40, "k": 72}
EPILOGUES = SIMPLE
#: Every step, with operands of every kind.
MIXED = (
    "bias+scale_shift+residual+clamp(-0.3,0.7)",
    "scale_shift+leaky_relu(0.2)+residual+relu6",
    "residual+residual+gelu_tanh+bias+silu",
    "scale_shift+residual+relu",
)
#: 40 pixels of output: no multiple of a tile.
CONV = Conv2d(2, 5, 3, 32, 24, 3, 2, padding=(1, 1), types=F16)

FHWC = replace(CONV, layout="nhwc_fhwc_nhwc")
#: Of enough pixels for several slices and for more tiles than workgroups.
LARGE = {"h": 7, "w": 6}
#: In every mode: layouts, strides that do and do not divide, one or more taps a phase, few channels.
VARIANTS = {
    "fhwc": {},
    "hwcf": {"layout": "nhwc"},
    "nchw": {"layout": "nchw"},
    "whcn": {"layout": "cwhn_wcfh_hncw"},
    "strides": {"stride": (2, 3), "r": 4, "s": 2, "padding": (1, 2)},
    "one_tap_strided": {"r": 1, "s": 1, "stride": (2, 2), "padding": (0, 0)},
    "dilation": {"dilation": (1, 2)},
    "groups": {"groups": 4},
    "few_channels": {"c": 3},
    "whole_taps": {"c": 64, "k": 32},
    "one_side": {"padding": (0, 1), "padding_after": (2, 1)},
    "wide_padding": {"padding": (3, 3)},
    "pointwise": {"r": 1, "s": 1, "padding": (0, 0)},
}
BACKWARD = ("input_backward", "weight_backward")

CASES = {
    **{f"{x}{y}": Dispatch(Matmul(**ODD, types=F16, lhs_layout=x, rhs_layout=y), SMALL) for x, y in LAYOUTS},
    **{
        f"tma_{x}{y}": Dispatch(Matmul(**ALIGNED, types=F16, lhs_layout=x, rhs_layout=y), TMA)
        for x, y in LAYOUTS
    },
    **{
        f"batch_{x}{y}": Dispatch(BatchMatmul(2, **ODD, types=F16, lhs_layout=x, rhs_layout=y), SMALL)
        for x, y in LAYOUTS
    },
    **{
        f"batch_tma_{x}{y}": Dispatch(BatchMatmul(2, **ALIGNED, types=F16, lhs_layout=x, rhs_layout=y), TMA)
        for x, y in LAYOUTS
    },
    **{f"epilogue_{e}": Dispatch(Matmul(**ODD, types=F16, epilogue=e), SMALL) for e in EPILOGUES},
    **{f"tma_epilogue_{e}": Dispatch(Matmul(**ALIGNED, types=F16, epilogue=e), TMA) for e in EPILOGUES[-2:]},
    **{
        f"steps_{text}": Dispatch(Matmul(**ODD, types=F16, epilogue=Epilogue.parse(text)), SMALL)
        for text in (*MIXED, *STEP_TEXTS, *SEQUENCES, *OF_ROWS)
    },
    **{
        f"{kind}_{name}_steps_{text}": Dispatch(
            replace(FHWC, **VARIANTS[name], **mode, epilogue=Epilogue.parse(text)), tiles
        )
        for text in MIXED
        for kind, mode, name, tiles in (
            ("conv", {}, "groups", SMALL),
            ("conv", {}, "whcn", SMALL),
            ("conv", {}, "pointwise", SMALL),
            ("conv_tma", {}, "fhwc", TMA),
            ("input_backward", {"mode": "input_backward"}, "strides", SMALL),
        )
    },
    **{
        f"batch_steps_{text}": Dispatch(BatchMatmul(2, **ODD, types=F16, epilogue=Epilogue.parse(text)), SMALL)
        for text in MIXED
    },
    "i8_steps": Dispatch(
        Matmul(**ODD, types=I8, epilogue=Epilogue.parse("scale_shift+bias+residual+clamp(-100,200)+relu6")), SMALL
    ),
    "joined_steps": Dispatch(
        Matmul(33, 40, 132, F16, epilogue=Epilogue.parse(MIXED[0])), replace(SMALL, split_k=4, joined=True)
    ),
    "swapped_steps": Dispatch(
        Matmul(**ODD, types=F16, rhs_layout="n", epilogue=Epilogue.parse(MIXED[0])), replace(SMALL, swapped=True)
    ),
    "f32": Dispatch(Matmul(**ODD), SMALL),
    "f16_to_f32": Dispatch(Matmul(**ODD, types=F32_OF_F16), SMALL),
    # The interpreter of Triton 3.9 multiplies the bits of bf16, and cuts off where it should round: only what
    # is exact in it is seen here.
    "to_bf16": Dispatch(Matmul(**ODD, types=TO_BF16, epilogue=Epilogue.parse("bias+relu")), SMALL),
    "f8": Dispatch(Matmul(**ODD, types=F8), SMALL),
    "i8": Dispatch(Matmul(**ODD, types=I8), SMALL),
    "i8_bias_relu": Dispatch(Matmul(**ODD, types=I8, epilogue=Epilogue.parse("bias+relu")), SMALL),
    "persistent": Dispatch(Matmul(**ODD, types=F16), replace(SMALL, persistent=4)),
    "persistent_tma": Dispatch(Matmul(**ALIGNED, types=F16), replace(TMA, persistent=3)),
    "swapped": Dispatch(Matmul(**ODD, types=F16, rhs_layout="n"), replace(SMALL, swapped=True)),
    "swapped_tma": Dispatch(Matmul(**ALIGNED, types=F16), replace(TMA, swapped=True)),
    "joined_bias_relu": Dispatch(
        Matmul(33, 40, 132, F16, epilogue=Epilogue.parse("bias+relu")), replace(SMALL, split_k=4, joined=True)
    ),
    "joined_tma_swapped": Dispatch(
        Matmul(24, 40, 128, F16, rhs_layout="n"), replace(TMA, split_k=2, joined=True, swapped=True)
    ),
    "no_group": Dispatch(Matmul(**ODD, types=F16), replace(SMALL, group=1)),
    "one_row": Dispatch(Matmul(1, 40, 64, F16), SMALL),
    "one_by_one": Dispatch(Matmul(1, 1, 1, F16), SMALL),
    "conv_bias_gelu": Dispatch(replace(CONV, epilogue=Epilogue.parse("bias+gelu")), SMALL),
    "conv_few_channels_nchw": Dispatch(replace(CONV, c=3, layout="nchw"), SMALL),
    "conv_groups_nchw_bias": Dispatch(
        replace(CONV, groups=4, layout="nchw", epilogue=Epilogue.parse("bias")), SMALL
    ),
    "conv_pointwise": Dispatch(replace(CONV, **LARGE, r=1, s=1, padding=(0, 0)), replace(SMALL, persistent=3)),
    "conv_everything": Dispatch(
        Conv2d(2, 9, 11, 12, 8, 3, 3, (2, 3), (2, 1), (2, 1), 2, "nchw", types=F16), SMALL
    ),
}  # fmt: skip
CASES |= {
    f"{mode}_{name}": Dispatch(replace(FHWC, mode=mode, **fields), SMALL)
    for mode in ("forward", *BACKWARD)
    for name, fields in VARIANTS.items()
}
CASES |= {
    "input_backward_bias_relu": Dispatch(
        replace(FHWC, mode="input_backward", stride=(2, 2), epilogue=Epilogue.parse("bias+relu")), SMALL
    ),
    "input_backward_persistent": Dispatch(
        replace(FHWC, **LARGE, mode="input_backward"), replace(SMALL, persistent=2)
    ),
    "forward_tma_pointwise": Dispatch(replace(FHWC, r=1, s=1, padding=(0, 0)), TMA),
    **{
        f"conv1d_{mode}": Dispatch(Conv1d(2, 19, 32, 24, 3, (2,), (1,), types=F16, mode=mode), SMALL)
        for mode in ("forward", *BACKWARD)
    },
}
#: Windows that the bulk copy engine fetches: the letters of a layout, dilation, and padding decide where from.
WINDOWS = ("fhwc", "hwcf", "dilation", "one_side", "wide_padding", "whole_taps")
CASES |= {
    f"{mode}_tma_{name}": Dispatch(replace(FHWC, mode=mode, **VARIANTS[name]), TMA)
    for mode in ("forward", *BACKWARD)
    for name in WINDOWS
}
CASES |= {
    f"{mode}_windows_{name}": Dispatch(
        replace(FHWC, mode=mode, **VARIANTS[name]), replace(TMA, windows_only=True)
    )
    for mode in ("forward", "input_backward")
    for name in ("fhwc", "hwcf")
}
CASES |= {
    "forward_tma_bias_relu": Dispatch(
        replace(FHWC, epilogue=Epilogue.parse("bias+relu")), replace(TMA, persistent=3, tile=(32, 16, 16))
    ),
    "forward_tma_few_images": Dispatch(replace(FHWC, n=3), replace(TMA, tile=(64, 16, 32))),
    **{
        f"conv1d_tma_{mode}": Dispatch(Conv1d(2, 19, 32, 24, 3, (1,), (1,), types=F16, mode=mode), TMA)
        for mode in ("forward", *BACKWARD)
    },
}
#: A phase of a strided input_backward may have fewer taps than there are slices.
CONV_SPLITS = {
    f"split_{mode}_{name}{'_tma' if c.descriptors else ''}": Dispatch(
        replace(FHWC, mode=mode, **(LARGE if mode == "weight_backward" else {}), **VARIANTS[name]),
        replace(c, split_k=split_k),
    )
    for mode, name, split_k, c in (
        ("weight_backward", "fhwc", 2, SMALL),
        ("weight_backward", "hwcf", 3, SMALL),
        ("weight_backward", "pointwise", 3, SMALL),
        ("weight_backward", "fhwc", 3, TMA),
        ("forward", "fhwc", 4, SMALL),
        ("forward", "groups", 2, SMALL),
        ("forward", "few_channels", 2, replace(SMALL, tile=(16, 16, 16))),
        ("forward", "pointwise", 2, SMALL),
        ("forward", "fhwc", 4, TMA),
        ("input_backward", "strides", 2, replace(SMALL, tile=(16, 32, 16))),
        ("input_backward", "whole_taps", 5, TMA),
        ("input_backward", "fhwc", 3, replace(TMA, windows_only=True, persistent=2)),
    )
}
SPLITS = {
    f"{'tma_' if c.descriptors else ''}{x}{y}": Dispatch(
        Matmul(40, 24, 96, F16, x, y, Epilogue.parse("bias+relu")), replace(c, split_k=3)
    )
    for x, y in LAYOUTS
    for c in (SMALL, TMA)
} | CONV_SPLITS
#: In the interpreter, bf16 is cut off where it should be rounded.
NORMS = {
    f"{kind.kind}_{type_}{affine_suffix(affine)}": Dispatch(
        kind(13, 40, type_, affine=affine), TritonRows(block=block)
    )
    for kind, block, parameters in (
        (LayerNorm, (4, 64), (True, False, "weight", "bias")),
        (LayerNormInputBackward, (2, 64), (True, False)),
        (LayerNormWeightBackward, (8, 16), (True, "weight")),
    )
    for type_ in ("f32", "f16")
    for affine in parameters
}


def operands(dispatch, *, whole):
    """Seeded operands of `dispatch`: whole numbers, whose sums are exact, or any."""
    rng = np.random.default_rng(7)

    def values(tensor):
        drawn = rng.integers(-3, 4, tensor.shape) if whole else rng.standard_normal(tensor.shape)
        return drawn.astype(tensor.type.dtype)

    return [values(tensor) for tensor in dispatch.operation.operands]


def drawn(operation):
    """Seeded operands as verification draws them."""
    rng = np.random.default_rng(7)
    return [operation.draw(each, Distribution.REALS, rng) for each in operation.operands]


def interpret(cases, answer):
    """Write to `answer` what the kernels write for each (dispatch, inputs)."""
    asked = answer.with_suffix(".cases")
    asked.write_bytes(pickle.dumps(cases))
    subprocess.run(
        [sys.executable, HERE / "interpret_triton.py", asked, answer],
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )


#: (Case, whole numbers?); integers are whole anyhow.
KEYS = [(name, True) for name in CASES] + [(n, False) for n in CASES if not n.startswith(("i8", "to_bf16"))]


@pytest.fixture(scope="module")
def results(made_once):
    """All of them at once: starting Triton takes longer than they do. A key, or a name of a split -> array."""
    keys = [*KEYS, *SPLITS, *NORMS]

    def case(key):
        if key in NORMS:
            return NORMS[key], drawn(NORMS[key].operation)
        if key in SPLITS:
            return SPLITS[key], operands(SPLITS[key], whole=False)
        name, whole = key
        return CASES[name], operands(CASES[name], whole=whole)

    answer = made_once("triton_results", lambda path: interpret(list(map(case, keys)), path))
    return dict(zip(keys, pickle.loads(answer.read_bytes()), strict=True))


def test_every_case_is_one_that_could_be_generated():
    """What no dispatch can have is not worth the proof."""
    cases = {**CASES, **SPLITS, **NORMS}
    reasons = {
        name: each.configuration.invalid_reason(each.operation, LIMITS) for name, each in cases.items()
    }
    assert {name: reason for name, reason in reasons.items() if reason is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "whole"), KEYS)
def test_a_kernel_computes_what_numpy_does(name, whole, results):
    """Within the bound for any numbers, exactly for whole ones; every element is written."""
    dispatch = CASES[name]
    expected = reference(dispatch.effective_operation, operands(dispatch, whole=whole))
    got = results[name, whole]

    assert got.dtype == dispatch.operation.result.type.dtype
    if expected.tolerance is None:
        np.testing.assert_array_equal(got, expected.expected)
    else:
        assert np.all(np.abs(got.astype(np.float64) - expected.expected) <= expected.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_slices_of_a_split_add_up_to_the_product(name, results):
    """The kernel leaves the epilogue to who adds them up, and holds the sums in the accumulator's type."""
    operation = SPLITS[name].operation
    lhs, rhs, *_ = (x.astype(np.float64) for x in operands(SPLITS[name], whole=False))
    got = results[name]

    slices = SPLITS[name].configuration.split_k
    assert (got.shape, got.dtype) == ((slices, *operation.result.shape), np.float32)
    np.testing.assert_allclose(got.sum(0), operation.contract(lhs, rhs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_a_kernel_of_a_layer_norm_computes_every_result(name, results):
    operation = NORMS[name].operation
    got = results[name] if len(operation.results) > 1 else [results[name]]
    bound = parse_target("cuda:sm_80").error_bound(operation)  # sums of a GPU are in f32
    references = operation.reference(drawn(operation), error_bound=bound)
    for array, tensor, expected in zip(got, operation.results, references, strict=True):
        assert (array.shape, array.dtype) == (tensor.shape, tensor.type.dtype)
        assert np.all(np.abs(array.astype(np.float64) - expected.expected) <= expected.tolerance)
