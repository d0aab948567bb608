"""Operators that get other strides than the graph was traced with compute the same, by torch's own samples of all operators."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dispatch_profiler.boo.fusion.strides import KNOWN, takes_any_strides

aten = torch.ops.aten
#: Samples of each of torch's tests; those with gradients run operators of backward graphs too.
SAMPLES = [12, pytest.param(60, marks=pytest.mark.slow)]
WITH_GRADIENTS = {
    *(f"nn.functional.{name}" for name in ("avg_pool2d", "adaptive_avg_pool2d", "hardswish", "batch_norm")),
    *(f"nn.functional.{name}" for name in ("max_pool2d", "prelu", "gelu", "silu")),
    "log_softmax",
    "softmax",
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here"),
    ),
]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for a core which another test uses would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_search_for_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's samples look for the `TestCase` that uses them in every frame of the stack: in pytest's, for two minutes."""
    utils = pytest.importorskip("torch.testing._internal.common_utils", exc_type=ImportError)
    monkeypatch.setattr(utils, "extract_test_fn", lambda: None, raising=False)


def otherwise_stored(value: Any) -> Any:
    """A tensor with its axes in the opposite order in memory."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return value
    order = list(range(value.dim()))[::-1]
    return value.permute(order).contiguous().permute(order)


class Restored(TorchDispatchMode):
    """Calls operators again with arguments that are stored otherwise, and notes those that compute something else."""

    def __init__(self, takes_any: Any = takes_any_strides) -> None:
        super().__init__()
        self.takes_any = takes_any
        self.seen: set[Any] = set()
        self.wrong: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # `view` becomes `reshape` where strides forbid it, and what `empty_like` returns is not initialized.
        is_left_out = func in (aten.view.default, aten.empty_like.default) or func._schema.is_mutable
        if self.takes_any(func) and not is_left_out:
            self.seen.add(func.overloadpacket)
            self._compare(func, *tree_map(otherwise_stored, (args, kwargs or {})), result)
        return result

    def _compare(self, func: Any, args: Any, kwargs: Any, expected: Any) -> None:
        try:
            found = func(*args, **kwargs)
            for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
                if isinstance(one, torch.Tensor):
                    torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-4)
        except Exception as error:
            self.wrong.setdefault(func, str(error))


def run_samples(mode: Restored, device: str, count: int) -> None:
    found = pytest.importorskip("torch.testing._internal.common_methods_invocations", exc_type=ImportError)
    for each in found.op_db:
        if torch.float32 not in each.supported_dtypes(device):
            continue
        grad = each.name in WITH_GRADIENTS
        for sample in samples_of(each, device, grad, count):
            try:
                with mode:
                    results = each(sample.input, *sample.args, **sample.kwargs)
                    sums = [one.sum() for one in tree_leaves(results) if grad and one.requires_grad]
                    torch.autograd.backward(sums)
            except Exception:
                break  # some of torch's tests cannot run in a dispatch mode


def samples_of(test: Any, device: str, grad: bool, count: int) -> Iterator[Any]:
    samples = test.sample_inputs(device, torch.float32, requires_grad=grad)
    try:
        yield from (sample for _, sample in zip(range(count), samples, strict=False))
    except Exception:
        return


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's own samples
@pytest.mark.usefixtures("one_thread", "no_search_for_a_test")
@pytest.mark.timeout(900)  # thousands of samples
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("device", DEVICES)
def test_known_operators_compute_the_same_for_other_strides(device: str, samples: int) -> None:
    mode = Restored()
    run_samples(mode, device, samples)
    image, statistics = torch.randn(2, 3, 4, 5, device=device), torch.rand(3, device=device) + 0.5
    with mode:
        aten._native_batch_norm_legit_no_training(
            image, statistics, statistics, statistics, statistics, 0.1, 1e-5
        )
        aten._upsample_bicubic2d_aa(image, [8, 9], False)
        aten._upsample_nearest_exact3d(image[None], [6, 8, 10])
        aten.copy(torch.empty_like(image), image)
        aten.lift_fresh_copy(image)
    assert not mode.wrong
    unseen = {str(each) for each in KNOWN - mode.seen}
    assert unseen <= {"aten.empty_like"}


def test_an_operator_that_reads_memory_is_noticed() -> None:
    mode = Restored(lambda func: True)
    x = torch.randn(3, 4)
    with mode:
        aten.as_strided(x, [12], [1])
    assert list(mode.wrong) == [aten.as_strided.default]


@pytest.mark.parametrize(
    "target",
    [
        operator.add,
        torch.cond,
        aten.as_strided.default,
        aten.view.dtype,
        aten.view_as_real.default,
        aten.native_group_norm.default,
        aten.native_dropout.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten.convolution_backward.default,
        aten.native_layer_norm_backward.default,
    ],
    ids=lambda target: getattr(target, "__name__", str(target)),
)
def test_others_get_the_strides_of_the_graph(target: Any) -> None:
    assert not takes_any_strides(target)
