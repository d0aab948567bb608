"""Every command of a real training workload is compiled ahead of time, launched, and right."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dispatch_profiler.boo import CachePopulator, get_launchable
from dispatch_profiler.boo.op_exports import OpSignature

COMMANDS = Path(__file__).parents[2] / "benchmarks" / "workloads" / "miopen_commands.txt"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_a_training_run_is_launched_and_right():
    """Against the float64 reference, within the bound of each element."""
    populator = CachePopulator(commands_file=COMMANDS, devices=["local-task"])
    populator.run()

    assert populator.get_failures() == {}
    assert len(populator.signatures) == 42
    for signature in populator.signatures:
        assert populator.get_cache_status(signature.func_name) == {"local-task": "cached"}
        assert largest_error(signature) <= 1.0, signature.func_name


def largest_error(signature: OpSignature) -> float:
    """The largest error of a launch with random arguments, relative to its bound."""
    import torch

    arguments = signature.get_sample_args(seed=7)
    result = get_launchable(signature, cache_only=True)(*arguments)
    operands: dict[int, np.ndarray] = {}
    for tensor, spec in zip(arguments, signature.launch.arguments, strict=True):
        bits = tensor.view(torch.int16).numpy()
        operands[spec.position] = bits.view(ml_dtypes.bfloat16).reshape(spec.kernel_shape)
    (reference,) = signature.operation.reference([operands[at] for at in range(len(operands))])
    assert reference.tolerance is not None
    found = result.double().numpy().reshape(reference.expected.shape)
    return float((np.abs(found - reference.expected.astype(np.float64)) / reference.tolerance).max())
