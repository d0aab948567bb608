"""Compares programs with torch once, before a model uses them: IREE's kernels of arbitrary graphs may be wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.torch_functions import to_torch
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.operations import DEFAULT_SEED, Reference
from dispatch_profiler.operations import Tensor as Operand
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
#: The name of the note beside a compared kernel, and its two values.
_NOTE, _RIGHT, _WRONG = "results", "as torch's", "unlike torch's"


def wrong_programs(programs: Iterable[OperatorProgram], device: DeviceUri) -> dict[OperatorProgram, str]:
    """Programs whose kernels compute wrong results or cannot be launched -> the reason.

    Comparisons are kept as notes beside the kernels in the cache.
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    reasons: dict[OperatorProgram, str] = {}
    with unset(), _torch._guards.tracing(None):
        for program in dict.fromkeys(programs):
            try:
                if not _is_right(program, device):
                    reasons[program] = "its results differ from torch's"
            except DispatchProfilerError as error:
                reasons[program] = str(error)
    return reasons


def _is_right(program: OperatorProgram, device: DeviceUri) -> bool:
    settings = launch_settings()
    cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
    key = OperationKernels(program, program.name, settings).kernel(device).key
    noted = cache.notes(key).get(_NOTE) if cache is not None else None
    if noted in (_RIGHT, _WRONG):
        return noted == _RIGHT
    is_right = agrees(program)
    if cache is not None:
        cache.add_note(key, _NOTE, _RIGHT if is_right else _WRONG)
    return is_right


def agrees(program: OperatorProgram) -> bool:
    """Whether the kernel's results match torch's in float64, on random operands of each distribution.

    Raises the errors of a launch.
    """
    rng = np.random.default_rng(DEFAULT_SEED)
    launchable = get_launchable(RegionSignature(program))
    for distribution in program.distributions:
        operands = [program.draw(each, distribution, rng) for each in program.operands]
        launched = launchable(*map(_flat, operands, program.operands))
        results = launched if isinstance(launched, tuple) else (launched,)
        pairs = zip(results, program.reference(operands), strict=True)
        if not all(_is_close(result.double().numpy(), reference) for result, reference in pairs):
            return False
    return True


def _flat(values: np.ndarray, operand: Operand) -> Tensor:
    return to_torch(values.reshape(-1), operand.type, torch.device("cpu"))


def _is_close(result: np.ndarray, reference: Reference) -> bool:
    """Whether each element is within the tolerance of the expected one, or NaN or infinite as the expected one."""
    expected, tolerance = reference.expected.reshape(-1), reference.tolerance
    assert tolerance is not None
    with np.errstate(invalid="ignore"):
        is_close = np.abs(result - expected) <= tolerance.reshape(-1)
    return bool((is_close | (result == expected) | (np.isnan(result) & np.isnan(expected))).all())
