"""`boo_layer_norm` computes what torch computes, with our kernels, and so do its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close  # noqa: E402
from recorded_launches import recorded_copies, recorded_launches  # noqa: E402

from dispatch_profiler.boo.ops import boo_layer_norm  # noqa: E402
from dispatch_profiler.boo.ops import layer_norm as module  # noqa: E402
from dispatch_profiler.boo.session import SESSION  # noqa: E402

theirs = torch.nn.functional.layer_norm
NAMES = {"w": "weight", "b": "bias"}
BACKWARD = "BOO_USE_BACKWARD_KERNELS"


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> None:
    SESSION.clear("layer_norms")


@pytest.fixture
def launched() -> Iterator[list[Any]]:
    with recorded_launches() as found:
        yield found


def tensors(dtype: str = "float32") -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 5, 8), (8,), (8,)
    return tuple(torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in shapes)  # type: ignore[return-value]


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_results_and_gradients_are_those_of_torch(
    dtype: str, monkeypatch: pytest.MonkeyPatch, launched: list[Any]
):
    for kernels, count in (("0", 1), ("1", 3)):
        monkeypatch.setenv(BACKWARD, kernels)
        outcomes = []
        launched.clear()
        for function in (boo_layer_norm, theirs):
            leaves = [each.clone().requires_grad_() for each in tensors(dtype)]
            y = function(leaves[0], (8,), *leaves[1:], 1e-3)
            y.square().sum().backward()
            outcomes.append([y, *(each.grad for each in leaves)])
        assert all(map(close, *outcomes))
        assert len(launched) == count


@pytest.mark.parametrize("grad", [False, True], ids=["", "requires_grad"])
def test_neither_input_nor_result_is_copied(grad: bool, launched: list[Any]):
    args = [each.requires_grad_(grad) for each in tensors()]
    for _ in range(2):
        launched.clear()
        with recorded_copies() as copies:
            y = boo_layer_norm(args[0], (8,), *args[1:])
        assert not copies
        assert launched[0].reads == tuple(each.data_ptr() for each in args)
        assert launched[0].writes[0] == y.data_ptr()


@pytest.mark.slow
def test_other_shapes_and_absent_parameters(launched: list[Any]):
    x, w, b = tensors()
    cases = [
        ((x, (5, 8)), True),
        ((x, [8]), True),
        ((x.transpose(0, 1), (8,), w, b), True),
        ((x, (8,), w), True),
        ((x, (8,), None, b), True),
        ((x[:0], (8,), w, b), False),
    ]
    for args, is_ours in cases:
        launched.clear()
        with torch.no_grad():
            assert close(boo_layer_norm(*args), theirs(*args))
        assert bool(launched) == is_ours


@pytest.mark.parametrize(
    "args",
    [((7,),), ((),), ((8,), torch.ones(7)), ((8,), torch.ones(8).double(), torch.ones(8)), (8,), (("8",),)],
    ids=str,
)
def test_errors_are_those_of_torch(args: tuple[Any, ...]):
    x, _, _ = tensors()
    with pytest.raises(Exception) as expected:
        theirs(x, *args)
    with pytest.raises(type(expected.value)) as found:
        boo_layer_norm(x, *args)
    assert str(found.value).split(" - got")[0] == str(expected.value).split(" - got")[0]


@pytest.mark.some(2)
@pytest.mark.parametrize("given", ["wb", "w", "b", ""])
def test_first_and_second_derivatives_are_right(kernels: str, given: str):
    x, *affine = (each.requires_grad_() for each in tensors("float64"))
    parameters = [each for name, each in zip("wb", affine, strict=True) if name in given]

    def run(x: Any, *parameters: Any) -> Any:
        return boo_layer_norm(x, (8,), **dict(zip([NAMES[name] for name in given], parameters, strict=True)))

    x = x[:1, :2].detach().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *parameters))
    if given != "b":  # torch's own second derivative is wrong there
        assert torch.autograd.gradgradcheck(run, (x, *parameters))


@pytest.mark.some(7)
@pytest.mark.usefixtures("backward_kernels")
@pytest.mark.parametrize("needed", ["xw", "xb", "w", "b", "x"])
@pytest.mark.parametrize("given", ["wb", "w", "b"])
def test_gradients_of_any_subset_are_those_of_torch(given: str, needed: str):
    """Frozen parameters, as in fine-tuning, and absent ones."""
    if not set(needed) & {"x", *given}:
        return
    dy = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    outcomes = []
    for function in (boo_layer_norm, theirs):
        named = dict(zip("xwb", tensors(), strict=True))
        leaves = {name: named[name].requires_grad_(name in needed) for name in ("x", *given)}
        y = function(leaves["x"], (8,), leaves.get("w"), leaves.get("b"))
        y.backward(dy)
        outcomes.append([y, *(each.grad for each in leaves.values() if each.requires_grad)])
        assert all(each.grad is None for each in leaves.values() if not each.requires_grad)
    assert all(map(close, *outcomes))


def test_operators_pass_the_checks_of_torch():
    for grad in (False, True):
        x, w, b = (each.requires_grad_(grad) for each in tensors())
        torch.library.opcheck(module.layer_norm, (x, [8], w, b, 1e-5))
    dy, (x, w, b) = torch.randn(3, 5, 8), (each.detach() for each in tensors())
    _, mean, rstd = module.layer_norm(x, [8], w, b, 1e-5)
    torch.library.opcheck(module.input_gradient, (dy, x, [8], mean, rstd, w, 1e-5))
    torch.library.opcheck(module.affine_gradients, (dy, x, [8], mean, rstd, 1e-5))
    torch.library.opcheck(module.weight_gradient, (dy, x, [8], mean, rstd, 1e-5))


def test_compiled_graphs_autocast_and_transformations():
    x, w, b = tensors()
    compiled = torch.compile(
        lambda x: boo_layer_norm(x, (8,), w, b), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for each in (x, x[:2]):
        assert close(compiled(each), theirs(each, (8,), w, b))
    for of in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            assert close(boo_layer_norm(of, (8,)), theirs(of, (8,)))
    assert close(torch.vmap(lambda x: boo_layer_norm(x, (8,), w, b))(x), theirs(x, (8,), w, b))
