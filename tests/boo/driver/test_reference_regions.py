"""What `--reference-backend=iree_boo_inductor` compiles is fused: the reference runs our kernel."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_profiler import capture
from dispatch_profiler.boo.driver.registry import BooOpRegistry
from dispatch_profiler.boo.driver.runs import outcomes
from dispatch_profiler.boo.driver.runs.outcomes import DriverBackend, SignatureLaunch
from dispatch_profiler.boo.driver.torch_functions import torch_function

torch: Any = pytest.importorskip("torch")

COMMANDS = [
    "conv -n 1 -c 4 -H 6 -W 5 -k 8 -y 3 -x 3 -F 1 --in_layout NHWC --out_layout NHWC --fil_layout NHWC",
    "layernorm -X 4x16 -o 1 -m 1 -F 1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_of_a_forward_is_one_region(command: str):
    signature = BooOpRegistry.parse_command(command)
    own = torch_function(signature.operation, torch.device("cpu"))
    operands = [torch.randn(each.shape) for each in signature.operation.operands]

    captured = capture(own.function, own.enter(operands))

    assert [each.kind for each in captured.workload.operations] == [signature.operation.kind]
    assert captured.left_to_torch == ()


def test_the_backend_is_that_of_this_package_whatever_torch_knows_by_its_name(monkeypatch):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.update(options) or function)
    signature = BooOpRegistry.parse_command(COMMANDS[0])
    launch = SignatureLaunch(signature, lambda *_: None, signature.get_sample_args(seed=0), "cpu")

    launch.work(DriverBackend.BOO_INDUCTOR)

    assert given["backend"].__module__.startswith("dispatch_profiler.boo.backends")
    assert outcomes.DriverBackend.BOO_INDUCTOR.is_torch
