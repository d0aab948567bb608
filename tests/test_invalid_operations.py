"""Operations that do not exist: the constructor and the command line give one sentence with the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    Attention,
    Conv1d,
    Conv2d,
    Conv3d,
    Epilogue,
    Int4Matmul,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Softmax,
)

AUDIO = {"n": 2, "w": 12, "c": 6, "k": 9, "s": 3}
IMAGE = {"n": 2, "h": 10, "w": 12, "c": 6, "k": 9, "r": 3, "s": 2}
CLIP = {"n": 2, "d": 5, **IMAGE, "t": 2}


class Invalid(NamedTuple):
    """The same operation twice, and why it does not exist.

    `said` is what the command line says where its options are parsed before an operation is made.
    """

    make: Callable[[], object]
    arguments: str
    sentence: str
    said: str = ""


def convolution(kind: type[Any], sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    """A convolution with extents that are valid, but for `changes`."""
    fields = {**{Conv1d: AUDIO, Conv2d: IMAGE, Conv3d: CLIP}[kind], **changes}
    return Invalid(lambda: kind(**fields), arguments_of(kind.kind, fields), sentence, said)


def transposed(kind: type[Any], sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    fields = {**{Conv1d: AUDIO, Conv2d: IMAGE, Conv3d: CLIP}[kind], **changes}
    arguments = f"{arguments_of(kind.kind, fields)} --conv-transposed"
    return Invalid(lambda: kind.transposed(**fields), arguments, sentence, said)


def arguments_of(kind: str, fields: dict[str, Any]) -> str:
    """`--op-kind=conv2d --conv-n=2 --conv-stride=2x1 --layout=nhwc ...`"""
    given = [f"--op-kind={kind}", "--lhs=f32"]
    for name, value in fields.items():
        option = name if name in ("layout", "epilogue") else f"conv-{name.replace('_', '-')}"
        text = "x".join(map(str, value)) if isinstance(value, tuple) else value
        given.append(f"--{option}={text}")
    return " ".join(given)


def norm(kind: type[Any], sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    fields = {"rows": 2, "size": 3, **changes}
    given = " ".join(f"--norm-{name}={value}" for name, value in fields.items())
    return Invalid(lambda: kind(**fields), f"--op-kind={kind.kind} {given}", sentence, said)


def softmax(sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    fields = {"rows": 2, "size": 3, **changes}
    given = " ".join(f"--softmax-{name}={value}" for name, value in fields.items())
    return Invalid(lambda: Softmax(**fields), f"--op-kind=softmax {given}", sentence, said)


def int4(sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    fields = {"m": 2, "n": 64, "k": 64, "group": 32, **changes}
    given = " ".join(f"--int4-{name}={value}" for name, value in fields.items())
    return Invalid(lambda: Int4Matmul(**fields), f"--op-kind=int4_matmul {given}", sentence, said)


def attention(sentence: str, said: str = "", /, **changes: Any) -> Invalid:
    fields = {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "size": 6, **changes}
    given = " ".join(f"--attention-{name.replace('_', '-')}={value}" for name, value in fields.items())
    return Invalid(lambda: Attention(**fields), f"--op-kind=attention {given}", sentence, said)


#: What the issue that asked for these operations lists as invalid -> examples.
INVALID: dict[str, list[Invalid]] = {
    "channels not divisible by groups": [
        convolution(Conv1d, "groups must divide the input channels c, but got groups=4, input channels c=6", groups=4),
        convolution(Conv2d, "groups must divide the filters k, but got groups=2, filters k=9", groups=2),
        convolution(
            Conv3d, "groups must divide the input channels c, but got groups=5, input channels c=6", groups=5,
            mode="weight_backward",
        ),
        transposed(Conv2d, "groups must divide the input channels c, but got groups=6, input channels c=9", groups=6),
    ],
    "output sizes below 1": [
        transposed(
            Conv1d, "conv1d: the output of a transposed convolution needs at least 1 pixel, but has w=-4", w=1, s=1,
            padding=(2,), padding_after=(3,),
        ),
        transposed(
            Conv2d, "conv2d: the output of a transposed convolution needs at least 1 pixel, but has h=-14, w=13", h=2,
            padding=(9, 0),
        ),
        transposed(
            Conv3d, "conv3d: the output of a transposed convolution needs at least 1 pixel, but has d=0, h=12, w=13",
            padding=(3, 0, 0),
        ),
    ],
    "a filter larger than the padded input": [
        convolution(
            Conv1d,
            "the filter is larger than its padded input along w: 17 > 14 (filter with dilation, input with padding)",
            s=9, dilation=(2,), padding=(1,),
        ),
        convolution(
            Conv2d,
            "the filter is larger than its padded input along h: 12 > 11 (filter with dilation, input with padding)",
            r=12, padding=(1, 0), padding_after=(0, 0), mode="input_backward",
        ),
        convolution(
            Conv3d,
            "the filter is larger than its padded input along d: 9 > 8 (filter with dilation, input with padding)",
            t=9, padding=(1, 0, 0), padding_after=(2, 0, 0), mode="weight_backward",
        ),
    ],
    "output padding not below stride or dilation": [
        transposed(
            Conv1d,
            "output padding must be at least 0 and below stride or dilation, but got 1 along w with stride 1 and "
            "dilation 1",
            output_padding=(1,),
        ),
        transposed(
            Conv2d,
            "output padding must be at least 0 and below stride or dilation, but got 2 along h with stride 2 and "
            "dilation 1",
            output_padding=(2, 0), stride=(2, 2),
        ),
        transposed(
            Conv3d,
            "output padding must be at least 0 and below stride or dilation, but got 3 along w with stride 1 and "
            "dilation 3",
            output_padding=(0, 0, 3), dilation=(1, 1, 3),
        ),
        transposed(
            Conv2d,
            "conv2d: an output padding of 2 along h with stride 1 needs a padding of at least 2 on the high side, but "
            "got 0",
            output_padding=(2, 0), dilation=(3, 3),
        ),
        transposed(
            Conv2d,
            "output padding must be at least 0 and below stride or dilation, but got -1 along w with stride 1 and "
            "dilation 1",
            "--conv-output-padding: malformed range '-1' in '0x-1'",
            output_padding=(0, -1),
        ),
    ],
    "layouts with repeated or missing letters": [
        convolution(Conv2d, "the filter layout 'fhhc' repeats h and lacks w", layout="nhwc_fhhc_nhwc"),
        convolution(Conv2d, "the input layout 'nnwc' repeats n and lacks h", layout="nnwc_fhwc_nhwc"),
        convolution(Conv3d, "the output layout 'ndhw' lacks c", layout="ndhwc_fdhwc_ndhw"),
        convolution(Conv2d, "the filter layout 'nhwc' lacks f and has an unknown n", layout="nhwc_nhwc_nhwc"),
        convolution(Conv1d, "the input layout 'nww' repeats w and lacks c", layout="nww_fwc_nwc"),
        convolution(Conv2d, "unknown convolution layout 'nhwc_fhwc'", layout="nhwc_fhwc"),
    ],
    "modes that a kind lacks": [
        convolution(Conv1d, "conv1d has no mode bias_backward", "a convolution has no mode bias_backward", mode="bias_backward"),
        convolution(Conv2d, "conv2d has no mode 'backward'", "a convolution has no mode 'backward'", mode="backward"),
        convolution(
            Conv3d, "conv3d: weight_backward has no epilogue, but got bias+relu", mode="weight_backward",
            epilogue=Epilogue.parse("bias+relu"),
        ),
    ],
    "eps not above 0": [
        norm(LayerNorm, "layer_norm: eps must be a number above 0, but got 0.0", eps=0.0),
        norm(LayerNorm, "layer_norm: eps must be a number above 0, but got -1e-05", eps=-1e-5),
        norm(LayerNorm, "layer_norm: eps must be a number above 0, but got nan", eps=math.nan),
        norm(LayerNorm, "layer_norm: eps must be a number above 0, but got inf", eps=math.inf),
    ],
    "scale not above 0": [
        softmax("softmax: scale must be a number above 0, but got 0.0", scale=0.0),
        attention("attention: scale must be a number above 0, but got -1.0", scale=-1.0),
        attention("attention: 4 heads cannot share 3 key heads evenly", key_heads=3),
        attention("attention: a window needs causal attention, but got causal=''", window=2),
        attention("attention: no causal 'left'", "--attention-causal: unknown kind of causal attention 'left'", causal="left"),
        attention("attention: no layout 'sbhd'", "--attention-layout: unknown layout 'sbhd'", layout="sbhd"),
        attention("attention: no element type i8", type="i8"),
        softmax("softmax: scale must be a number above 0, but got nan", scale=math.nan),
        softmax("softmax: every extent must be at least 1, but got size=0", "--softmax-size: values must be at least 1, but got '0'", size=0),
        softmax("softmax: no element type i8", type="i8"),
        int4("int4_matmul: 100 columns are not a multiple of 64", n=100),
        int4("int4_matmul: 48 terms are not a multiple of 32", k=48),
        int4("int4_matmul: no element type f64", type="f64"),
    ],
    "rank mismatches": [
        convolution(Conv1d, "conv1d: padding must be one whole number (width), but got (1, 1)", padding=(1, 1)),
        convolution(Conv2d, "conv2d: stride must be two whole numbers (height, width), but got (1, 2, 2)", stride=(1, 2, 2)),
        convolution(
            Conv2d, "conv2d: padding_after must be two whole numbers (height, width), but got (1, 1, 1)",
            padding_after=(1, 1, 1),
        ),
        convolution(
            Conv3d, "conv3d: dilation must be three whole numbers (depth, height, width), but got (1, 2)",
            dilation=(1, 2),
        ),
        transposed(
            Conv3d, "conv3d: output_padding must be three whole numbers (depth, height, width), but got (1, 1)",
            output_padding=(1, 1), stride=(2, 2, 2),
        ),
        convolution(
            Conv2d, "the layout nwc has 1 spatial axis, but the convolution has 2",
            "the layout nwc is for conv1d, but the requested kinds are conv2d", layout="nwc",
        ),
        convolution(
            Conv2d, "the input layout 'ndhwc' has an unknown d",
            "the layout ndhwc_dhwcf_ndhwc is for conv3d, but the requested kinds are conv2d",
            layout="ndhwc_dhwcf_ndhwc",
        ),
    ],
    "extents and types": [
        convolution(Conv3d, "conv3d: every extent must be at least 1, but got d=0", "--conv-d: values must be at least 1, but got '0'", d=0),
        transposed(
            Conv2d, "conv2d: every extent must be at least 1, but got stride_h=0",
            "--conv-stride: values must be at least 1, but got '0' in '0x1'", stride=(0, 1),
        ),
        convolution(
            Conv2d, "conv2d: padding_after must be at least 0, but got (0, -1)",
            "--conv-padding-after: malformed range '-1' in '0x-1'", padding_after=(0, -1),
        ),
        norm(LayerNorm, "layer_norm: every extent must be at least 1, but got rows=0", "--norm-rows: values must be at least 1, but got '0'", rows=0),
        norm(
            LayerNormInputBackward, "layer_norm_input_backward: every extent must be at least 1, but got size=0",
            "--norm-size: values must be at least 1, but got '0'", size=0,
        ),
        norm(LayerNormWeightBackward, "layer_norm_weight_backward: no element type f8E4M3FN", type="f8E4M3FN"),
        norm(LayerNorm, "layer_norm: no element type i8", type="i8"),
    ],
}  # fmt: skip
EVERY = [
    pytest.param(each, id=f"{line}-{number}")
    for line, rows in INVALID.items()
    for number, each in enumerate(rows)
]


@pytest.mark.parametrize("invalid", EVERY)
def test_the_constructor_gives_the_rule_and_the_values(invalid):
    with pytest.raises(OperationError) as caught:
        invalid.make()
    assert str(caught.value) == invalid.sentence


@pytest.mark.parametrize("invalid", EVERY)
def test_the_command_line_gives_the_same_sentence_and_writes_nothing(run, invalid, tmp_path):
    outcome = run("generator", *invalid.arguments.split())
    first, *hints = outcome.err.splitlines()
    assert (outcome.status, outcome.out) == (2, "")
    assert first == f"generator.py: error: {invalid.said or invalid.sentence}"
    assert len(hints) <= 1 and all(hint.startswith("hint: ") for hint in hints)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    "arguments", ["--op-kind=matmul --conv-mode=forward", "--op-kind=layer_norm --conv-mode=weight_backward",
                  "--op-kind=layer_norm_input_backward --norm-eps=1e-5", "--op-kind=layer_norm_weight_backward --norm-eps=1e-5",
                  "--op-kind=layer_norm --epilogue=relu", "--op-kind=bias_backward --lhs=f16"],
)  # fmt: skip
def test_options_that_a_kind_lacks_are_rejected(run, arguments):
    """Each mode of a layer norm is a kind of its own."""
    kind = arguments.split()[0].removeprefix("--op-kind=")
    outcome = run("generator", *arguments.split()).checked(2)
    assert f"but the requested kinds are {kind}\n" in outcome.err
