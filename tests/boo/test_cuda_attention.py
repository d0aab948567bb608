"""Attention on an NVIDIA GPU: drawn problems and kernels against float64, and `boo_attention`. Skipped without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conv_samples import close
from recorded_launches import recorded_launches

from dispatch_profiler.boo.kernels.targets import target_of
from dispatch_profiler.boo.ops import boo_attention
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import IreeCompiler, launch_request
from dispatch_profiler.configurations import TritonAttention
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.dispatches.launch_program import read_program
from dispatch_profiler.operations import Attention, Distribution
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here")

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
#: Drawn problems, each with a drawn kernel.
DRAWN = 200


def drawn_attention(rng: np.random.Generator) -> Attention:
    key_heads, shared = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 4]))
    queries = int(rng.choice([1, 2, 5, int(rng.integers(1, 300))]))
    keys = int(rng.integers(1, 500))
    causal = str(rng.choice(["", "upper_left", "lower_right"]))
    mask = str(rng.choice(["", "", "bool", "add"]))
    return Attention(
        batch=int(rng.integers(1, 3)),
        heads=key_heads * shared,
        queries=queries,
        keys=keys,
        size=int(rng.choice([16, 40, 64, 128, int(rng.integers(1, 160))])),
        key_heads=key_heads,
        value_size=int(rng.choice([0, 0, int(rng.integers(1, 130))])),
        type=str(rng.choice(["f16", "bf16", "f32"])),
        scale=float(rng.choice([0.0, 0.3])),
        causal=causal,
        window=int(rng.choice([0, int(rng.integers(1, keys + 1))])) if causal else 0,
        mask=mask,
        mask_axes=str(rng.choice(["", "b", "q", "bq", "hq", "bhq"])) if mask else "",
        logsumexp=bool(rng.random() < 0.3),
        layout=str(rng.choice(["bhsd", "bshd"])),
    )


def drawn_kernel(operation: Attention, rng: np.random.Generator) -> TritonAttention:
    """A valid point of the space."""
    limits = target_of(DeviceUri("cuda", "0")).limits
    space = TritonAttention.space(operation, limits)
    assert space is not None
    while True:
        kernel = space.to_configuration(space.draw(rng))
        if kernel.invalid_reason(operation, limits) is None:
            return kernel


def on_gpu(array: np.ndarray) -> Any:
    raw = array.view(np.int16) if array.dtype.name == "bfloat16" else array
    tensor = torch.from_numpy(np.ascontiguousarray(raw)).cuda()
    return tensor.view(torch.bfloat16) if array.dtype.name == "bfloat16" else tensor


@pytest.mark.parametrize("seed", range(DRAWN))
def test_drawn_kernels_compute_drawn_attentions(seed: int):
    """Every element is within the bound; NaN is where a kernel wrote nothing."""
    rng = np.random.default_rng([20261130, seed])
    operation = drawn_attention(rng)
    target = target_of(DeviceUri("cuda", "0"))
    reason = "shared memory"
    while "shared memory" in reason:  # only Triton knows how much a kernel needs
        kernel = drawn_kernel(operation, rng)
        dispatch = Dispatch(operation, kernel)
        built = IreeCompiler().build(launch_request(dispatch, target))
        (outcome,) = built.outcomes.values()
        reason = outcome.reason
    assert outcome.state.value == "compiled", reason
    program = CudaProgram(read_program(built.program, built.verify), built.verify, 0, dispatch.name)
    kind = Distribution.OFFSET if seed % 3 == 2 else Distribution.REALS
    operands = [operation.draw(each, kind, rng) for each in operation.operands]
    results = [
        torch.full(each.shape, torch.nan, dtype=getattr(torch, TYPES[each.type.name]), device="cuda")
        for each in operation.results
    ]
    memory = torch.empty(max(1, program.transient_bytes), dtype=torch.uint8, device="cuda")
    given = [on_gpu(each) for each in operands]
    addresses = [each.data_ptr() for each in (*given, *results, memory)]
    program.launch(addresses, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    expected = operation.reference(operands, error_bound=kernel.error_bound(operation))
    for got, reference in zip(results, expected, strict=True):
        found = got.double().cpu().numpy()
        finite = np.isfinite(reference.expected)
        np.testing.assert_array_equal(found[~finite], reference.expected[~finite], dispatch.name)
        off = np.abs(found[finite] - reference.expected[finite]) / reference.tolerance[finite]
        assert off.max(initial=0.0) <= 1.0, f"{dispatch.name}: {off.max()} of the bound"


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "add"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 37])
def test_results_and_gradients_on_a_gpu_are_those_of_torch(queries: int, dtype: str, kind: str):
    SESSION.clear("attentions")
    torch.manual_seed(0)
    shapes = ((8, queries), (2, 53), (2, 53))
    given = [torch.randn(2, *each, 64, device="cuda", dtype=getattr(torch, dtype)) for each in shapes]
    seen = torch.rand(queries, 53, device="cuda") > 0.3
    seen[:, 0] = True
    masks = {"bool": seen, "add": torch.where(seen, 0.5, -torch.inf).to(given[0].dtype)}
    outcomes = []
    with recorded_launches() as launched:
        for function in (boo_attention, torch.nn.functional.scaled_dot_product_attention):
            leaves = [each.clone().requires_grad_() for each in given]
            y = function(*leaves, masks.get(kind), is_causal=kind == "causal", enable_gqa=True)
            y.square().sum().backward()
            outcomes.append([y, *(each.grad for each in leaves)])
    for ours, theirs in zip(*outcomes, strict=True):
        assert close(ours.float(), theirs.float()) or float((ours - theirs).abs().max()) < 0.02 * float(
            theirs.abs().max()
        )
    assert len(launched) == 1


def test_an_attention_of_parts_is_captured_in_a_cuda_graph():
    """Two kernels, the second of which reads what the first one wrote."""
    query = torch.randn(1, 8, 1, 64, device="cuda", dtype=torch.float16)
    key, value = (torch.randn(1, 2, 2000, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    with torch.inference_mode():
        boo_attention(query, key, value, enable_gqa=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = boo_attention(query, key, value, enable_gqa=True)
        query.copy_(torch.randn_like(query))
        graph.replay()
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert float((found - expected).abs().max()) < 2e-3
