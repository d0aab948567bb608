"""`boo_conv` computes what torch computes, in torch's memory formats, with our kernels and without copies."""

from __future__ import annotations

import itertools
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from conv_samples import FUNCTIONS, LAST, close, conv, tensors  # noqa: E402
from recorded_launches import failing_launches, recorded_copies, recorded_launches  # noqa: E402

from dispatch_profiler.boo.ops import boo_conv, kernel_plans  # noqa: E402
from dispatch_profiler.boo.session import SESSION  # noqa: E402
from dispatch_profiler.errors import ToolError, UsageError  # noqa: E402

pytestmark = pytest.mark.usefixtures("plans_of_this_test")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_the_options_are_those_of_torch():
    x, w, b = tensors()
    for args, options in [
        ((x, w), {}),
        ((x, w, b), {}),
        ((x, w, b, 2, 1), {}),
        ((x, w), {"stride": [1, 2], "dilation": [2, 2], "padding": [1, 0]}),
        ((x, w), {"stride": (2,), "padding": [2]}),
        ((x, w), {"padding": "same"}),
        ((x, w[:, :, :2, :]), {"padding": "same", "dilation": (1, 2)}),
        ((x, w), {"padding": "valid"}),
        ((x, w[:, :2]), {"groups": 2}),
        ((x, w[:4, :1]), {"groups": 4, "padding": 1}),
    ]:
        with recorded_launches() as launched:
            found = boo_conv(*args, **options)
        assert close(found, conv(*args, **options)), options
        assert launched, options


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("float64", "float16")), "float32", "bfloat16"],
)
def test_types_and_formats(dtype: str):
    x, w, b = tensors(dtype=getattr(torch, dtype))
    expected = conv(x, w, b, padding=1)
    for x_format in (torch.contiguous_format, torch.channels_last):
        for w_format in (torch.contiguous_format, torch.channels_last):
            args = x.to(memory_format=x_format), w.to(memory_format=w_format), b
            with recorded_launches() as launched:
                found = boo_conv(*args, padding=1)
            assert close(found, expected)
            assert found.stride() == conv(*args, padding=1).stride()
            assert launched


LAYOUTS = [
    ("NHWC", None, None, None),
    ("nchw", None, None, None),
    (None, "NCHW", "NHWC", "NCHW"),
    (None, "NHWC", None, None),
    ("NHWC", None, "HWCN", None),
    (None, None, None, "CHWN"),
    (None, "CWHN", "WNHC", "HNCW"),
]


def permuted(tensor: Any, layout: str) -> Any:
    """A dense tensor with axes in `layout`, from one with torch's."""
    return tensor.permute(["NCHW".index(letter) for letter in layout]).contiguous()


@pytest.mark.some(2)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
def test_layouts(layouts: tuple[str | None, ...]):
    names = ("shared_layout", "input_layout", "kernel_layout", "output_layout")
    x, w, b = tensors()
    of_x, of_w, of_y = ((each or layouts[0] or "NCHW").upper() for each in layouts[1:])

    found = boo_conv(
        permuted(x, of_x), permuted(w, of_w), b, padding=1, **dict(zip(names, layouts, strict=True))
    )

    assert close(found, permuted(conv(x, w, b, padding=1), of_y))
    assert found.is_contiguous()


def test_layouts_of_one_and_three_axes():
    x, w = torch.randn(2, 3, 9), torch.randn(4, 3, 2)
    for letter in "HW":
        found = boo_conv(x.transpose(1, 2), w.transpose(1, 2), shared_layout=f"N{letter}C")
        assert close(found, conv(x, w).transpose(1, 2))
    x, w = torch.randn(1, 3, 4, 5, 6), torch.randn(2, 3, 2, 2, 2)
    found = boo_conv(x.permute(0, 2, 3, 4, 1), w, input_layout="NDHWC", output_layout="NDHWC")
    assert close(found, conv(x, w).permute(0, 2, 3, 4, 1))


@pytest.mark.slow
def test_images_without_a_batch_and_empty_tensors():
    x, w, b = tensors()
    assert close(boo_conv(x[0], w, b), conv(x[0], w, b))
    assert close(boo_conv(x[0].permute(1, 2, 0), w, input_layout="NHWC"), conv(x[0], w))
    found = boo_conv(x[0].permute(1, 2, 0), w, input_layout="NHWC", output_layout="HWCN")
    assert close(found, conv(x[0], w).permute(1, 2, 0))
    for empty in (x[:0], torch.empty(2, 0, 7, 6)):
        weight = w[:, : empty.shape[1]]
        assert boo_conv(empty, weight).shape == conv(empty, weight).shape


@st.composite
def convolutions(draw: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    axes, groups = draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2, 3)))
    one_each = st.lists(st.integers(1, 2), min_size=axes, max_size=axes)
    window = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    extents = [draw(st.integers(5, 7)) for _ in range(axes)]
    dtype = draw(st.sampled_from((torch.float64, torch.float32, torch.float32, torch.bfloat16)))
    channels, filters = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def drawn(*shape: int) -> Any:
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        format_ = draw(st.sampled_from(("contiguous", "last", "reversed", "strided")))
        if format_ == "last" and axes > 1:
            return tensor.to(memory_format=LAST[axes])
        if format_ == "reversed":
            return tensor.permute(*reversed(range(axes + 2))).contiguous().permute(*reversed(range(axes + 2)))
        return torch.cat([tensor, tensor], -1)[..., : shape[-1]] if format_ == "strided" else tensor

    x, w = drawn(draw(st.integers(1, 2)), channels, *extents), drawn(filters, channels // groups, *window)
    b = torch.randn(filters, generator=generator).to(dtype) if draw(st.booleans()) else None
    options = {"stride": draw(one_each), "dilation": draw(one_each), "groups": groups}
    options["padding"] = draw(st.lists(st.integers(0, 2), min_size=axes, max_size=axes))
    return x, w, b, options


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(convolutions())
def test_random_convolutions(sample: tuple[Any, Any, Any, dict[str, Any]]):
    check(*sample)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(convolutions())
def test_many_random_convolutions(sample: tuple[Any, Any, Any, dict[str, Any]]):
    check(*sample)


def check(x: Any, w: Any, b: Any, options: dict[str, Any]) -> None:
    found, expected = boo_conv(x, w, b, **options), conv(x, w, b, **options)
    assert close(found, expected)
    # torch has no format for conv1d, and computes single 3-D images by a path that ignores the format.
    if x.dim() == 4 or (x.dim() == 5 and len(x) > 1):
        # The stride of an axis with one element says nothing about memory.
        wanted = conv(*(torch.empty_strided(t.shape, t.stride()).copy_(t) for t in (x, w)), **options)
        axes = [axis for axis, extent in enumerate(found.shape) if extent > 1]
        assert [found.stride(axis) for axis in axes] == [wanted.stride(axis) for axis in axes]


# -- what is copied ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NCHW", "channels_last", "NHWC", "CHWN"])
def test_neither_input_nor_result_is_copied(layout: str, monkeypatch: pytest.MonkeyPatch):
    """The kernel reads and writes the very memory of the tensors."""
    from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors

    monkeypatch.setattr(TorchTensors, "copy", None)  # a launch that copies fails
    x, w, b = tensors()
    names: dict[str, str] = {}
    if layout == "channels_last":
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    elif layout != "NCHW":
        x, names = permuted(x, layout), {"input_layout": layout, "output_layout": layout}

    for _ in range(3):
        with recorded_launches() as launched:
            y = boo_conv(x, w, b, **names)
        (launch,) = launched
        assert (launch.reads[0], launch.reads[2]) == (x.data_ptr(), b.data_ptr())
        assert launch.reads[1] == w.data_ptr() or layout == "NHWC"  # which reads FHWC
        assert launch.writes == (y.data_ptr(),)
        assert y.untyped_storage().nbytes() == y.nbytes


def test_no_operator_of_torch_copies_in_a_call():
    x, w, b = tensors()
    x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    boo_conv(x, w, b)
    with torch.profiler.profile() as profile:
        boo_conv(x, w, b)
        boo_conv(x, w, b).clone()

    seen = {each.key: each.count for each in profile.key_averages()}
    assert seen["dispatch_profiler::convolution"] == 2
    assert (seen["aten::clone"], seen["aten::copy_"]) == (1, 1)  # that of this test
    assert not {"aten::contiguous", "aten::_to_copy", "aten::convolution"} & set(seen)


@pytest.mark.parametrize("layout", ["", "NCHW"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "requires_grad"])
def test_no_method_of_tensors_copies_in_an_eager_call(layout: str, grad: bool):
    """Profilers see other calls than programs without one."""
    x, w, b = (each.requires_grad_(grad) for each in tensors())
    for _ in range(2):
        with recorded_copies() as copies, recorded_launches() as launched:
            y = boo_conv(x, w, b, shared_layout=layout or None)
        assert not copies
        assert launched[0].reads == (x.data_ptr(), w.data_ptr(), b.data_ptr())
        assert launched[0].writes == (y.data_ptr(),)
    with recorded_copies() as copies:
        x.detach().clone(), x.detach().contiguous(), x.detach().transpose(2, 3).contiguous()
    assert copies == ["clone", "contiguous"]


def test_a_weight_is_permuted_once_for_each_version():
    x, w, b = tensors()
    x, w = x.to(memory_format=torch.channels_last), torch.nn.Parameter(w)
    addresses = []
    with torch.no_grad():
        for step in range(6):
            if step == 3:
                w.mul_(2)
            with recorded_launches() as launched:
                assert close(boo_conv(x, w, b), conv(x, w, b))
            addresses.append(launched[0].reads[1])

    assert len(set(addresses[:3])) == len(set(addresses[3:])) == 1
    assert w.data_ptr() not in addresses


def test_weights_made_in_inference_mode_are_permuted_once_until_they_change(
    monkeypatch: pytest.MonkeyPatch,
):
    copies: list[Any] = []
    copy = kernel_plans.copied_in
    monkeypatch.setattr(
        kernel_plans, "copied_in", lambda tensor, order: copies.append(tensor) or copy(tensor, order)
    )
    x, w, b = tensors()
    with torch.inference_mode():
        x, w = x.to(memory_format=torch.channels_last), w.clone()
        for step in range(4):
            if step == 2:
                w[1, 2] += 1
            assert close(boo_conv(x, w, b), conv(x, w, b))
        assert len(copies) == 2


@pytest.mark.slow
def test_views_with_offsets_and_negatives():
    """A launch copies what it cannot read in place, also after others of the same shapes and strides."""
    x, w, b = tensors()
    boo_conv(x, w, b)
    unaligned = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    for view in (torch._neg_view(x), unaligned, x[:, :, ::2], x.flip(2), x[:1].expand(2, 4, 7, 6)):
        assert close(boo_conv(view, w, b), conv(view, w, b))
    for weight in (torch._neg_view(w), w.transpose(2, 3)):
        assert close(boo_conv(x, weight, b), conv(x, weight, b))
    for bias in (torch._neg_view(b), b.expand(2, 6).t().flatten()[::2], b[:1].expand(6)):
        assert close(boo_conv(x, w, bias), conv(x, w, bias))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (2, 1, 7, 6), (1, 3, 1, 1)])
def test_strides_of_results_of_expanded_tensors_are_those_of_torch(shape: tuple[int, ...]):
    """Such as a grey image as one of three colors: torch takes channels that share memory for contiguous ones."""
    w = torch.randn(8, 3, 1, 1)
    images = [torch.randn(shape).expand(2, 3, 7, 6), torch.randn(shape).expand(2, 3, 7, 6)[:, :, ::2]]
    images += [each.to(memory_format=torch.channels_last) for each in images]
    filters = [w, torch.randn(8, 1, 1, 1).expand(8, 3, 1, 1), torch.randn(1, 3, 1, 1).expand(8, 3, 1, 1)]
    for x, w in itertools.product(images, filters):
        assert boo_conv(x, w).stride() == conv(x, w).stride()


def test_a_plan_serves_every_mode():
    """What is kept of a call in one mode decides nothing in another one."""
    x, w, b = tensors()
    w.requires_grad_()
    modes = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    for first in modes:
        SESSION.clear("convolutions")
        for mode in (first, *modes):
            with mode():
                y = boo_conv(x, w, b)
            assert close(y, conv(x, w, b))
            assert (y.is_inference(), y.requires_grad) == (
                mode is torch.inference_mode,
                mode is torch.enable_grad,
            )
            assert not y._is_view()


def test_arguments_that_compare_equal_are_not_the_same():
    """True and 1.0 are 1 to a dictionary; torch rejects both."""
    x, w, b = tensors()
    boo_conv(x, w, b, 1, 1)
    for other in (1.0, True):
        with pytest.raises(TypeError):
            conv(x, w, b, other, 1)
        with pytest.raises(TypeError):
            boo_conv(x, w, b, other, 1)


def test_layouts_with_other_arguments():
    """Lists, names of paddings and images without a batch, in layouts, with and without grad."""
    x, w, b = tensors()
    images, filters = permuted(x, "NHWC"), permuted(w, "NHWC").requires_grad_()
    for options in ({"padding": [1, 1]}, {"padding": "same"}, {"padding": 1}):
        expected = permuted(conv(x, w, b, **options), "NHWC")
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                found = boo_conv(images, filters, b, shared_layout="NHWC", **options)
                assert close(found, expected)
                assert found.requires_grad == torch.is_grad_enabled()
                assert found.is_contiguous()
                single = boo_conv(images[0], filters, b, shared_layout="NHWC", **options)
                assert close(single, expected[0])
    with torch.no_grad():  # by torch: kernels do not compute integers
        found = boo_conv(images.long(), filters.long(), shared_layout="NHWC")
        assert torch.equal(found, permuted(conv(x.long(), w.long()), "NHWC"))
        assert found.is_contiguous()


# -- errors and fallbacks ---------------------------------------------------------------------------

_IMAGE, _WEIGHT = torch.randn(2, 4, 7, 6), torch.randn(6, 4, 3, 3)
REJECTED = {
    "rank of the input": ((torch.randn(4), _WEIGHT), {}),
    "rank of the weight": ((_IMAGE, torch.randn(6, 4)), {}),
    "a rank of five axes": ((torch.randn(1, 4, 3, 3, 3, 3), torch.randn(6, 4, 1, 1, 1, 1)), {}),
    "channels": ((_IMAGE, _WEIGHT[:, :3]), {}),
    "groups that do not divide": ((_IMAGE, _WEIGHT), {"groups": 3}),
    "no groups": ((_IMAGE, _WEIGHT), {"groups": 0}),
    "groups that are no number": ((_IMAGE, _WEIGHT), {"groups": "2"}),
    "types": ((_IMAGE, _WEIGHT.double()), {}),
    "type of the bias": ((_IMAGE, _WEIGHT, torch.randn(6).double()), {}),
    "length of the bias": ((_IMAGE, _WEIGHT, torch.randn(5)), {}),
    "stride of 0": ((_IMAGE, _WEIGHT), {"stride": 0}),
    "three strides": ((_IMAGE, _WEIGHT), {"stride": (1, 1, 1)}),
    "a fractional stride": ((_IMAGE, _WEIGHT), {"stride": 1.5}),
    "a stride that is a bool": ((_IMAGE, _WEIGHT), {"stride": True}),
    "groups that are a bool": ((_IMAGE, _WEIGHT), {"groups": True}),
    "a stride that is a bool beside same": ((_IMAGE, _WEIGHT), {"stride": True, "padding": "same"}),
    "negative padding": ((_IMAGE, _WEIGHT), {"padding": -1}),
    "unknown padding": ((_IMAGE, _WEIGHT), {"padding": "full"}),
    "same with a stride": ((_IMAGE, _WEIGHT), {"padding": "same", "stride": 2}),
    "dilation of 0": ((_IMAGE, _WEIGHT), {"dilation": 0}),
    "a window larger than the image": ((_IMAGE, _WEIGHT), {"dilation": 4}),
    "integers as a weight": ((_IMAGE, _WEIGHT.long()), {}),
    "sparse": ((_IMAGE.to_sparse(), _WEIGHT), {}),
    "no tensor": (([[1.0]], _WEIGHT), {}),
    "a bias that is no tensor": ((_IMAGE, _WEIGHT, 3), {}),
}


@pytest.mark.parametrize("case", REJECTED)
def test_errors_are_those_of_torch(case: str):
    args, options = REJECTED[case]
    weight = args[1]
    function = FUNCTIONS[min(max(weight.dim() - 2, 1), 3)]
    with pytest.raises(Exception) as expected:
        function(*args, **options)

    with pytest.raises(type(expected.value)) as found:
        boo_conv(*args, **options)

    found_text, expected_text = (re.split(r" - got|\n", str(each.value))[0] for each in (found, expected))
    assert found_text == expected_text


def test_invalid_layouts():
    x, w, _ = tensors()
    for options in ({"shared_layout": "NHC"}, {"input_layout": "NHWX"}, {"kernel_layout": "NCHH"}):
        with pytest.raises(UsageError, match=f"{next(iter(options))} .* is no layout of 4 axes"):
            boo_conv(x, w, **options)


def test_an_invalid_variable_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    x, w, b = tensors()
    monkeypatch.setenv("BOO_CACHE_ON", "perhaps")
    with pytest.raises(UsageError, match="BOO_CACHE_ON"):
        boo_conv(x, w, b)
    monkeypatch.undo()
    assert close(boo_conv(x, w, b), conv(x, w, b))


@pytest.mark.parametrize("dtype", ["int64", "complex64"])
def test_types_without_kernels_are_computed_by_torch(dtype: str):
    x, w = (torch.ones(shape).to(getattr(torch, dtype)) for shape in ((1, 2, 4, 4), (3, 2, 2, 2)))
    with recorded_launches() as launched:
        assert torch.equal(boo_conv(x, w), conv(x, w))
    assert not launched


def test_a_kernel_that_fails_costs_one_message(caplog: pytest.LogCaptureFixture):
    x, w, b = tensors()
    with (
        failing_launches(ToolError("the compiler crashed")),
        caplog.at_level(logging.WARNING, "dispatch_profiler.boo"),
    ):
        for _ in range(3):
            assert close(boo_conv(x, w, b), conv(x, w, b))

    assert [record.getMessage() for record in caplog.records] == [
        "a convolution of (2, 4, 7, 6) is computed by torch: the compiler crashed"
    ]


# -- modes that observe or transform operators ------------------------------------------------------


def test_results_in_no_grad_and_inference_mode():
    x, w, b = tensors()
    w.requires_grad_()
    with torch.no_grad():
        y = boo_conv(x, w, b)
    assert not y.requires_grad
    assert not y._is_view()
    y.mul_(
        torch.nn.Parameter(torch.ones(()))
    ).sum().backward()  # torch forbids it on a view that is made in no_grad
    with torch.inference_mode():
        assert boo_conv(x, w, b).is_inference()


def test_a_result_can_be_changed_in_place():
    x, w, b = tensors()
    x, w = x.to(memory_format=torch.channels_last).requires_grad_(), w.requires_grad_()
    boo_conv(x, w, b).relu_().sum().backward()
    found = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    conv(x, w, b).relu_().sum().backward()
    assert close(found[0], x.grad)
    assert close(found[1], w.grad)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("of", ["float32", "float64"])
def test_autocast_casts_as_torch_does(dtype: str, of: str):
    x, w, b = tensors(dtype=getattr(torch, of))
    w = torch.nn.Parameter(w)
    for context in (torch.enable_grad, torch.no_grad):
        with context(), torch.autocast("cpu", getattr(torch, dtype)):
            for args in ((x, w, b), (x.to(torch.bfloat16), w, b)):
                expected = _outcome(conv, *args)
                found = _outcome(boo_conv, *args)
                if isinstance(expected, Exception):
                    assert type(found) is type(expected)
                else:
                    assert close(found, expected)
                    assert found.requires_grad == expected.requires_grad


def _outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return error


def test_subclasses_and_modes_are_as_with_torch():
    x, w, b = tensors()

    class Named(torch.Tensor):
        pass

    found = boo_conv(x.as_subclass(Named), w, b)
    assert type(found) is type(conv(x.as_subclass(Named), w, b)) is Named
    assert close(found.as_subclass(torch.Tensor), conv(x, w, b))
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(x, 2 * x)
    assert close(boo_conv(pair, w).b, conv(pair, w).b)
    with torch.device("meta"):  # a mode of torch functions
        assert close(boo_conv(x, w, b), conv(x, w, b))
    assert boo_conv(x.to("meta"), w.to("meta")).is_meta
    assert boo_conv(x, w.to("meta")).device == conv(x, w.to("meta")).device


def test_a_profile_shows_the_operator():
    x, w, b = tensors()
    with torch.profiler.profile() as profile:
        boo_conv(x, w, b)
    assert "dispatch_profiler::convolution" in {each.key for each in profile.key_averages()}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_functorch_and_forward_gradients():
    x, w, b = tensors()
    batch, weights = torch.randn(3, 2, 4, 7, 6), torch.randn(3, 6, 4, 3, 3)
    every = torch.vmap(boo_conv, (0, None, None))
    assert close(every(batch, w, b), torch.vmap(conv, (0, None, None))(batch, w, b))
    for dims, args in [((None, 0, None), (x, weights, b)), ((0, 0, None), (batch, weights, b)), ((None, None, 0), (x, w, torch.randn(3, 6)))]:  # fmt: skip
        assert close(torch.vmap(boo_conv, dims)(*args), torch.vmap(conv, dims)(*args))

    def loss(function: Any) -> Any:
        return lambda w: function(x, w, b).square().sum()

    assert close(torch.func.grad(loss(boo_conv))(w), torch.func.grad(loss(conv))(w))
    found, expected = (torch.func.jvp(loss(each), (w,), (torch.ones_like(w),)) for each in (boo_conv, conv))
    assert close(found[1], expected[1])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, torch.ones_like(w))
        tangent = torch.autograd.forward_ad.unpack_dual(boo_conv(x, dual, b)).tangent
        assert close(tangent, conv(x, torch.ones_like(w)))


def test_threads():
    samples = [tensors(seed=seed) for seed in range(8)]

    def is_right(number: int) -> bool:
        x, w, b = samples[number]
        last = x.to(memory_format=torch.channels_last)
        return all(close(boo_conv(last, w, b), conv(x, w, b)) for _ in range(20))

    with ThreadPoolExecutor(len(samples)) as pool:
        assert all(pool.map(is_right, range(len(samples))))


#: In a process of its own, where neither the compiler nor operators of torch have left threads that a fork would lose.
FORKING = f"""
import faulthandler, os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from conv_samples import tensors
from recorded_launches import recorded_launches
from dispatch_profiler.boo.ops import boo_conv

x, w, b = tensors()
expected = boo_conv(x, w, b)
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(60, exit=True)
    with recorded_launches() as launched:
        found = boo_conv(x, w, b), boo_conv(x, w, b)
    os._exit(7 if len(launched) == 2 and all(each.equal(expected) for each in found) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_forked_process_launches_kernels_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=200)

    assert done.stdout == "7\n", done.stderr
