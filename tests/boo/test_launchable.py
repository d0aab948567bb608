"""Launches with torch tensors and numpy arrays: what is shared, what is copied, and what is rejected."""

from __future__ import annotations

import gc
import logging
import pickle
import weakref
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from launch_samples import SMALL, Kernels, aligned, drawn, expected_of, spec_of, with_shape

from dispatch_profiler.boo import Launchable, empty_aligned
from dispatch_profiler.boo.interface import LaunchSpec
from dispatch_profiler.boo.launching.array_library import KEPT_LISTS
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import ElementTypes, LayerNorm, Matmul, Operation
from dispatch_profiler.runtime import RunError

torch: Any = pytest.importorskip("torch")

TYPES = [
    ElementTypes("f64", "f64", "f64"),
    ElementTypes("f32", "f32", "f32"),
    ElementTypes("f16", "f16", "f16"),
    ElementTypes("bf16", "bf16", "bf16"),
    ElementTypes("f8", "f8", "f32"),
    ElementTypes("i8", "i8", "i32"),
]


def launchable(operation: Operation = SMALL, spec: LaunchSpec | None = None, **options: Any) -> Launchable:
    return Launchable(spec or spec_of(operation), Kernels(operation), **options)


def as_torch(arrays: list[np.ndarray]) -> list[Any]:
    """Tensors in the same memory."""
    return [torch.from_numpy(each) for each in arrays]


def samples(library: str, operation: Operation = SMALL, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """(arguments, expected result)"""
    operands = drawn(operation, seed)
    expected = expected_of(operation, operands)[0]
    return (as_torch(operands) if library == "torch" else operands), expected


def values(result: Any) -> np.ndarray:
    return result if isinstance(result, np.ndarray) else result.numpy()


@pytest.fixture
def launch() -> Launchable:
    return launchable()


@pytest.fixture
def forbid_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the launch copied")

    for library in ("numpy_arrays.NumpyArrays", "torch_tensors.TorchTensors"):
        monkeypatch.setattr(f"dispatch_profiler.boo.launching.arrays.{library}.copy", fail)


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_launches_return_new_results_of_the_callers_library(library: str, forbid_copies: None):
    """The first launch takes a longer way than the next ones."""
    launch, found = launchable(), []
    for seed in range(3):
        arguments, expected = samples(library, seed=seed)
        found.append((launch(*arguments), expected))

    for result, expected in found:
        assert type(result) is (torch.Tensor if library == "torch" else np.ndarray)
        assert (values(result) == expected).all()


@pytest.mark.some(2)
@pytest.mark.parametrize("types", TYPES, ids=lambda each: each.lhs)
def test_every_type_is_launched_without_a_copy(types: ElementTypes, forbid_copies: None):
    """With the identity as rhs the result has the values of lhs, from numpy and from torch."""
    operation = Matmul(4, 4, 4, types)
    lhs = aligned(np.arange(-8, 8).reshape(4, 4).astype(types.input.dtype))
    identity = aligned(np.eye(4).astype(types.input.dtype))
    launch = launchable(operation)

    from_numpy = launch(lhs, identity)
    bits = [torch.from_numpy(each.view(f"i{types.input.bytes}")) for each in (lhs, identity)]
    dtype = {"bf16": torch.bfloat16, "f8E4M3FN": torch.float8_e4m3fn}.get(types.lhs)
    tensors = [each.view(dtype) for each in bits] if dtype else as_torch([lhs, identity])
    from_torch = [launch(*tensors) for _ in range(2)]

    assert from_numpy.dtype == types.output.dtype
    expected = lhs.astype(np.float64).tolist()
    assert from_numpy.astype(np.float64).tolist() == expected
    assert [each.double().tolist() for each in from_torch] == [expected] * 2


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_arguments_have_their_own_order_and_shape(library: str, forbid_copies: None):
    """Callers pass (rhs, lhs), and see a matrix of the kernel as a vector or as a tensor of rank 4."""
    spec = spec_of(SMALL)
    lhs, rhs = spec.arguments
    (result,) = spec.results
    seen = LaunchSpec(
        SMALL, (with_shape(rhs, 128), with_shape(lhs, 1, 4, 1, 16)), (with_shape(result, 4, 1, 8),)
    )
    launch = launchable(spec=seen)
    for seed in range(3):
        (left, right), expected = samples(library, seed=seed)

        found = launch(right.reshape(128), left.reshape(1, 4, 1, 16))

        assert tuple(found.shape) == (4, 1, 8)
        assert (values(found).reshape(4, 8) == expected).all()


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_several_results_are_a_tuple(library: str):
    operation = LayerNorm(3, 8)
    launch = launchable(operation)
    operands = drawn(operation)
    arguments = as_torch(operands) if library == "torch" else operands
    outs = tuple(0 * each for each in launch(*arguments))
    want = torch.nn.functional.layer_norm(torch.from_numpy(operands[0]), (8,), *as_torch(operands[1:]))

    for _ in range(2):
        y, mean, rstd = launch(*arguments)
        assert launch(*arguments, out=outs) is outs

        for each in (y, outs[0]):
            torch.testing.assert_close(torch.from_numpy(values(each)), want)
        assert values(mean).tolist() == values(outs[1]).tolist()
        np.testing.assert_allclose(values(mean), operands[0].mean(axis=1), atol=1e-5)
        np.testing.assert_allclose(values(rstd), 1 / np.sqrt(operands[0].var(axis=1) + 1e-5), rtol=1e-4)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_results_are_written_to_out(launch: Launchable, library: str, forbid_copies: None):
    for seed in range(3):
        arguments, expected = samples(library, seed=seed)
        out = aligned(np.full((4, 8), np.nan, np.float32))
        given = torch.from_numpy(out) if library == "torch" else out

        assert launch(*arguments, out=given) is given
        assert (out == expected).all()


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_out_may_share_memory_with_an_argument(library: str, caplog: pytest.LogCaptureFixture):
    """x = x @ x, and x = x[8 rows] @ ... in a shifted window: the kernel reads what was there before."""
    operation = Matmul(16, 16, 16)
    launch = launchable(operation)
    for seed in range(3):
        (lhs, _), _ = samples("numpy", operation, seed)
        memory = aligned(np.zeros((20, 16), np.float32))
        memory[:16] = lhs
        window, shifted = memory[:16], memory[4:]
        expected = expected_of(operation, [lhs, lhs])[0]
        if library == "torch":
            window, shifted = as_torch([window, shifted])

        assert launch(window, window, out=shifted) is shifted
        assert (memory[4:] == expected).all()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO] == (
        [
            f"{operation.name}: out (result) is copied, because it shares memory with an argument or another result"
        ]
        if library == "torch"
        else []
    )


def test_gradients_are_ignored(launch: Launchable, forbid_copies: None):
    """Launches read tensors that require grad, and parameters; results do not require grad."""
    (lhs, rhs), expected = samples("torch")

    found = [launch(lhs.clone().requires_grad_(), torch.nn.Parameter(rhs)) for _ in range(2)]

    assert [each.requires_grad for each in found] == [False, False]
    assert all((each.numpy() == expected).all() for each in found)


def test_autograd_notices_that_out_was_written():
    """As with torch's own functions, a backward pass does not use elements that were overwritten."""
    (lhs, rhs), _ = samples("torch")
    launch, weight = launchable(), torch.ones(4, 8, requires_grad=True)
    for _ in range(2):
        out = torch.zeros(4, 8)
        loss = (weight * out).sum()
        launch(lhs, rhs, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_copy_launches_too():
    """As in a process that is started, which gets its launchables pickled."""
    (lhs, rhs), expected = samples("torch")
    launch = Launchable(spec_of(SMALL), Kernels(SMALL), threads=2)
    launch(lhs, rhs)
    for copy in (pickle.loads(pickle.dumps(launch)), deepcopy(launch)):
        assert copy.spec == launch.spec
        assert copy.driver == ""
        assert (copy(lhs, rhs).numpy() == expected).all()


def test_launches_in_inference_mode_return_what_torch_returns(launch: Launchable):
    (lhs, rhs), expected = samples("torch")
    for _ in range(2):
        with torch.inference_mode():
            found = launch(lhs, rhs)
            assert launch(lhs, rhs, out=found) is found
        assert found.is_inference() and (found.numpy() == expected).all()
    assert not launch(lhs, rhs).is_inference()


def test_launches_keep_no_tensor_alive(launch: Launchable):
    arguments, _ = samples("torch")
    kept = [weakref.ref(launch(*arguments)) for _ in range(2)]
    kept += [weakref.ref(each) for each in arguments]

    del arguments
    gc.collect()

    assert [each() for each in kept] == [None] * 4


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_tensors_at_many_addresses_are_launched(library: str):
    """Some argument lists are kept by address, and none for ever."""
    launch, kept = launchable(), [samples(library, seed=seed) for seed in range(KEPT_LISTS + 2)]
    for _ in range(3):
        results = [launch(*arguments) for arguments, _ in kept]

        assert all(
            (values(each) == expected).all() for each, (_, expected) in zip(results, kept, strict=True)
        )
        for arguments, _ in kept[:2]:
            arguments[0] *= -1
        kept[:2] = [(arguments, -expected) for arguments, expected in kept[:2]]


# -- copies ----------------------------------------------------------------------------------------


def unusual(kind: str, array: np.ndarray) -> np.ndarray:
    """The same values in memory that IREE does not accept."""
    if kind == "transposed":
        return np.asfortranarray(array)
    if kind == "strided":
        wide = np.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)
        wide[:, ::2] = array
        return wide[:, ::2]
    if kind == "read-only":
        array = array.copy()
        array.flags.writeable = False
        return array
    moved = empty_aligned(array.size + 1, array.dtype)[1:].reshape(array.shape)
    moved[...] = array
    return moved


REASONS = {
    "transposed": "it is not dense and row major",
    "strided": "it is not dense and row major",
    "misaligned": "it is not aligned to 64 bytes",
    "read-only": "it is read-only",
}


@pytest.mark.parametrize(
    ("library", "kind"),
    [("torch", kind) for kind in list(REASONS)[:3]] + [("numpy", kind) for kind in REASONS],
)
def test_what_cannot_be_shared_is_copied_and_logged_once(
    launch: Launchable, library: str, kind: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "dispatch_profiler.boo")
    for seed in range(3):
        (lhs, rhs), expected = samples("numpy", seed=seed)
        arguments = [unusual(kind, lhs), rhs]

        found = launch(*(as_torch(arguments) if library == "torch" else arguments))

        assert (values(found) == expected).all()
    level = "WARNING" if library == "torch" else "INFO"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (level, f"{SMALL.name}: argument lhs is copied, because {REASONS[kind]}")
    ]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("kind", ["transposed", "strided", "misaligned"])
def test_out_may_be_any_memory(launch: Launchable, library: str, kind: str):
    for seed in range(3):
        arguments, expected = samples(library, seed=seed)
        out = unusual(kind, np.zeros((4, 8), np.float32))

        launch(*arguments, out=torch.from_numpy(out) if library == "torch" else out)

        assert (out == expected).all()


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_negative_view_is_read_with_its_sign(launch: Launchable, is_dense: bool):
    (lhs, rhs), expected = samples("torch")
    # Those of public functions are strided.
    negative = torch._neg_view(lhs) if is_dense else torch.complex(torch.zeros_like(lhs), lhs).conj().imag
    assert negative.is_neg() and negative.is_contiguous() == is_dense
    launch(lhs, rhs)
    for _ in range(2):
        assert (launch(negative, rhs).numpy() == -expected).all()


# -- what is rejected ------------------------------------------------------------------------------

LHS, RHS = torch.zeros(4, 16), torch.zeros(16, 8)


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize(
    ("arguments", "out", "said"),
    [
        ([LHS], None, r"takes 2 arguments \(lhs, rhs\), but got 1"),
        ([LHS, RHS, RHS], None, r"takes 2 arguments \(lhs, rhs\), but got 3"),
        ([LHS, RHS.T], None, r"argument rhs of matmul_\w+: expected f32 \(16, 8\), but got f32 \(8, 16\)"),
        ([LHS, RHS.flatten()], None, r"argument rhs of matmul_\w+: expected f32 \(16, 8\), but got f32 \(128,\)"),
        ([LHS, RHS.double()], None, r"argument rhs of matmul_\w+: expected f32 \(16, 8\), but got f64 \(16, 8\)"),
        ([LHS, RHS.bool()], None, "but got bool"),
        ([LHS.numpy(), RHS.double().numpy()], None, "expected f32 .*, but got f64"),
        ([LHS.numpy(), RHS.numpy() > 0], None, "but got bool"),
        ([LHS.numpy(), RHS.numpy().astype(">f4")], None, "but got >f4"),
        ([LHS, RHS.numpy()], None, "only numpy arrays, but got torch.Tensor, numpy.ndarray"),
        ([[[1.0]], RHS], None, "but got builtins.list, torch.Tensor"),
        ([LHS, None], None, "but got torch.Tensor, builtins.NoneType"),
        ([LHS, RHS.to("meta")], None, "argument rhs of matmul_\\w+ is on meta, but the first argument is on cpu"),
        ([LHS.to("meta"), RHS.to("meta")], None, "on the CPU and on CUDA devices, but these are on meta"),
        ([LHS, RHS.to_sparse()], None, r"argument rhs of matmul_\w+ is not dense \(torch.sparse_coo\)"),
        ([LHS, RHS], torch.zeros(8, 4), r"out \(result\) of matmul_\w+: expected f32 \(4, 8\), but got f32 \(8, 4\)"),
        ([LHS, RHS], torch.zeros(4, 8).half(), r"out \(result\) of matmul_\w+: expected f32 .* but got f16"),
        ([LHS, RHS], torch.zeros(4, 8, requires_grad=True), r"out \(result\) .* requires grad, but launches do not"),
        ([LHS, RHS], torch.zeros(1, 8).expand(4, 8), r"out \(result\) .* is expanded: several of its elements share memory"),
        ([LHS, RHS], np.zeros((4, 8), np.float32), "only torch tensors or only numpy arrays"),
        ([LHS, RHS], (torch.zeros(4, 8),), "only torch tensors or only numpy arrays"),
        ([LHS.numpy(), RHS.numpy()], unusual("read-only", np.zeros((4, 8), np.float32)), "is read-only"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_rejected(
    launch: Launchable, arguments: list[Any], out: Any, said: str, used_before: bool
):
    """By a first launch as by later ones, which check as little as possible; and the next launch works."""
    if used_before:
        launch(LHS, RHS)
    with pytest.raises(UsageError, match=said):
        launch(*arguments, out=out)
    assert launch(LHS + 1, RHS + 1).tolist() == [[16.0] * 8] * 4


def test_a_tensor_without_memory_is_rejected(launch: Launchable):
    from torch._subclasses import FakeTensorMode

    launch(LHS, RHS)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(RHS)
    with pytest.raises(UsageError, match=r"argument rhs of .* is a FakeTensor, which has no memory"):
        launch(LHS, fake)


def test_tensors_in_vmap_are_rejected(launch: Launchable):
    launch(LHS, RHS)
    with pytest.raises(UsageError, match="a tensor has no memory that a kernel could use"):
        torch.vmap(lambda lhs: launch(lhs, RHS))(torch.zeros(2, 4, 16))


@pytest.mark.parametrize(
    ("out", "got"), [(torch.zeros(3, 8), "a Tensor"), ((torch.zeros(3, 8),), "1 elements")]
)
def test_out_of_several_results_is_a_tuple(out: Any, got: str):
    operation = LayerNorm(3, 8)
    with pytest.raises(UsageError, match=rf"must be a tuple of 3 \(y, mean, rstd\), but got {got}"):
        launchable(operation)(*as_torch(drawn(operation)), out=out)


@pytest.mark.parametrize("threads", [0, -1, 2.0, True])
def test_a_number_of_threads_is_positive(threads: Any):
    with pytest.raises(UsageError, match="threads must be a whole number of at least 1"):
        launchable(threads=threads)


# -- failed launches -------------------------------------------------------------------------------

#: Fails if the first element of lhs is 0.
PARTIAL = """
func.func @NAME(%lhs: tensor<2x2xf32>, %rhs: tensor<2x2xf32>, %result: tensor<2x2xf32> {iree.abi.output = 0 : index}) -> tensor<2x2xf32> {
  %zero = arith.constant 0.0 : f32
  %index = arith.constant 0 : index
  %first = tensor.extract %lhs[%index, %index] : tensor<2x2xf32>
  %ok = arith.cmpf one, %first, %zero : f32
  cf.assert %ok, "the first element is zero"
  %sum = arith.addf %lhs, %rhs : tensor<2x2xf32>
  return %sum : tensor<2x2xf32>
}
"""  # fmt: skip


def test_a_failed_launch_raises_its_cause_and_affects_no_other():
    operation = Matmul(2, 2, 2)
    source = PARTIAL.replace("NAME", f"{operation.name}_tile_config_default")
    launch = Launchable(spec_of(operation), Kernels(operation, source))
    bad, good = torch.zeros(2, 2), torch.ones(2, 2)
    for _ in range(3):
        with pytest.raises(
            RunError, match=f"launching {operation.name} .*the first element is zero"
        ) as caught:
            launch(bad, good)
        assert caught.value.__cause__ is not None
        assert launch(good, good).tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_kernel_that_cannot_be_had_is_asked_for_again():
    """What the provider raises is raised; so is what loading its vmfb does."""
    attempts = iter([UsageError("no compiler"), b"no vmfb", None])

    def make() -> bytes:
        found = next(attempts)
        if isinstance(found, Exception):
            raise found
        return found or good

    good = Kernels(SMALL).kernel(None).vmfb  # type: ignore[arg-type]
    launch = Launchable(spec_of(SMALL), Kernels(SMALL, make=make))
    with pytest.raises(UsageError, match="no compiler"):
        launch(LHS, RHS)
    with pytest.raises(RunError, match="loading the vmfb failed"):
        launch(LHS, RHS)
    assert launch(LHS, RHS).tolist() == [[0.0] * 8] * 4


def test_a_kernel_that_takes_other_tensors_fails_clearly():
    """A provider's mistake does not write beyond the caller's tensors."""
    spec = spec_of(SMALL)
    wrong = replace(
        spec, arguments=tuple(replace(a, kernel_shape=a.kernel_shape[::-1]) for a in spec.arguments)
    )
    with pytest.raises(RunError, match="INVALID_ARGUMENT"):
        Launchable(wrong, Kernels(SMALL))(LHS, RHS)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [5, (5,), (2, 3, 4), (), np.int64(7)])
@pytest.mark.parametrize("dtype", ["float32", np.int8, np.float64, "bfloat16"])
def test_aligned_arrays_start_at_a_multiple_of_64(shape: Any, dtype: Any):
    array = empty_aligned(shape, dtype)

    assert array.shape == np.empty(shape).shape
    assert array.dtype == np.dtype(dtype)
    assert array.ctypes.data % 64 == 0
    assert array.flags.c_contiguous and array.flags.writeable
