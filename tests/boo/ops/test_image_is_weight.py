"""Convolutions of a tensor with itself: image and weight are one tensor, or views of one memory."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close, conv  # noqa: E402
from recorded_launches import recorded_launches  # noqa: E402

from dispatch_profiler.boo.ops import boo_conv  # noqa: E402

pytestmark = pytest.mark.usefixtures("plans_of_this_test")

#: A leaf -> image and weight.
PAIRS = {
    "leaf": lambda x: (x, x),
    "result": lambda x: (y := 2 * x, y),
    "view": lambda x: (x, x.transpose(2, 3)),
}


def drawn(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "last", "kernels"),
    [
        # Without kernels of gradients, torch computes these, in either memory format.
        pytest.param(
            *(pair, last, kernels),
            id=f"{pair}-{'channels_last' if last else 'contiguous'}-{kernels}",
            marks=pytest.mark.slow if last and kernels == "0" else (),
        )
        for pair in PAIRS
        for last in (False, True)
        for kernels in ("0", "1")
    ],
)
def test_result_and_gradients_are_those_of_torch(
    pair: str, last: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
):
    """The gradient of the leaf is the sum of those of the image and of the weight."""
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", kernels)
    x = drawn(4, 4, 3, 3)
    x = x.to(memory_format=torch.channels_last) if last else x
    found = []
    launches = 3 if kernels == "1" else 1
    for function, expected in ((boo_conv, launches), (conv, 0)):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        image, weight = PAIRS[pair](leaf)
        with recorded_launches() as launched:
            y = function(image, weight, None, padding=1)
            y.square().sum().backward()
        found.append((y, leaf.grad))
        assert len(launched) == expected
    assert all(map(close, *found))


def test_writes_to_a_parameter_that_is_image_and_weight_are_noticed():
    """The image is read where it is, and the weight permuted once for each version."""
    parameter = torch.nn.Parameter(drawn(4, 4, 4, 4))
    addresses = []
    with torch.no_grad():
        for step in range(4):
            if step == 2:
                parameter.mul_(-1.5)
            with recorded_launches() as launched:
                y = boo_conv(parameter, parameter, padding=1, input_layout="NHWC", kernel_layout="NCHW")
            assert close(y, conv(parameter.permute(0, 3, 1, 2), parameter, padding=1))
            ((image, weight),) = [each.reads for each in launched]
            assert image == parameter.data_ptr() != weight
            addresses.append(weight)
    assert addresses[0] == addresses[1] and addresses[2] == addresses[3]
