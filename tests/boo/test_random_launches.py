"""Random signatures through the API, from commands' shapes to results in any memory, against torch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from boo_signatures import signatures, torch_results
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dispatch_profiler.boo import CachePopulator, get_launchable
from dispatch_profiler.boo.driver.torch_functions import to_numpy
from dispatch_profiler.boo.interface import TensorSpec
from dispatch_profiler.boo.op_exports import OpSignature

torch: Any = pytest.importorskip("torch")

TYPES = ("f32", "f16", "bf16", "f64")


def drawn_signatures(count: int) -> list[OpSignature]:
    """So many different signatures of all kinds and types, the same in every run."""
    found: dict[OpSignature, None] = {}

    @settings(
        max_examples=2 * count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(TYPES).flatmap(signatures))
    def collect(signature: OpSignature) -> None:
        found.setdefault(signature)

    collect()
    assert len(found) >= count
    # Evenly from all, because the first ones are the simplest.
    every = list(found)
    return [every[number * len(every) // count] for number in range(count)]


def in_other_memory(tensor: Any, rng: np.random.Generator) -> Any:
    """The same elements: as they are, in another order of axes, strided, not aligned, or as a parameter."""
    kind = rng.integers(5)
    if kind == 1:
        order = rng.permutation(tensor.dim()).tolist()
        return tensor.permute(order).contiguous().permute(np.argsort(order).tolist())
    if kind == 2:
        wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    if kind == 3:
        moved = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
        return moved.copy_(tensor)
    return torch.nn.Parameter(tensor) if kind == 4 and tensor.is_floating_point() else tensor


def empty(spec: TensorSpec, like: Any, rng: np.random.Generator) -> Any:
    """Where a result may be written to."""
    result = in_other_memory(torch.full(spec.shape, torch.nan, dtype=like.dtype), rng)
    return result.detach()


def check_launches(signature: OpSignature, seed: int) -> None:
    """Two launches, the second in its shortest form, with results in new memory and in given memory."""
    rng, launch = np.random.default_rng(seed), get_launchable(signature, cache_only=True)
    arguments = signature.get_sample_args(seed=seed)
    specs = signature.launch.arguments
    operands = {
        spec.position: to_numpy(each, spec.type).reshape(spec.kernel_shape)
        for spec, each in zip(specs, arguments, strict=True)
    }
    references = signature.operation.reference([operands[at] for at in range(len(operands))])
    # A mask has the type of the queries, or Booleans.
    mask = {"mask_dtype": "f64"} if getattr(signature, "mask_dtype", "bool") != "bool" else {}
    doubled: Any = replace(signature, dtype="f64", **mask)  # type: ignore[type-var]
    wide = [each.double() if each.is_floating_point() else each for each in arguments]
    expected = torch_results(doubled, wide)
    first = launch(*(in_other_memory(each, rng) for each in arguments))
    outs = tuple(map(lambda spec, each: empty(spec, each, rng), signature.launch.results, as_tuple(first)))
    launch(*arguments, out=outs if len(outs) > 1 else outs[0])
    for found in (first, launch(*arguments), outs):
        for result, want, reference in zip(as_tuple(found), expected, references, strict=True):
            assert result.shape == want.shape
            tolerance = np.asarray(reference.tolerance).reshape(want.shape) + 1e-12
            error = (result.double() - want.detach()).abs().numpy()
            assert (error <= tolerance).all(), (
                f"{signature.func_name}: {(error / tolerance).max()} x tolerance"
            )


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def check_all(count: int) -> None:
    cases = drawn_signatures(count)
    populator = CachePopulator(signatures=cases, devices=["local-task"])
    populator.run()
    assert populator.get_failures() == {}
    for seed, signature in enumerate(cases):
        check_launches(signature, seed)


@pytest.mark.slow
def test_random_launches_agree_with_torch(in_process: None):
    check_all(2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_500_random_launches_agree_with_torch():
    """Of any rank, layout, group, mode and type, with tensors in any memory."""
    check_all(500)
