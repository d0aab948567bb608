"""BooConv2d, boo_layer_norm, and compiled models, in DistributedDataParallel: two processes with gloo train as one does with torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

#: Arguments: rank, the file in which the processes meet, and what runs the model. Rank 0 prints how far its weight is from torch's.
PROGRAM = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.modeling import replace_convs_with_boo
from dispatch_profiler.boo.ops import boo_layer_norm

class BooLayerNorm(torch.nn.LayerNorm):
    def forward(self, x):
        return boo_layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

def network():
    torch.manual_seed(0)
    if sys.argv[3] == "layer norms":
        return torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(4, 2, 1))

def train(model, images):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
ours, theirs = network(), network()
if sys.argv[3] == "modules":
    parallel = DistributedDataParallel(replace_convs_with_boo(ours))
elif sys.argv[3] == "layer norms":
    for each in (ours[0], ours[3]):
        each.__class__ = BooLayerNorm
    parallel = DistributedDataParallel(ours)
else:
    parallel = torch.compile(DistributedDataParallel(ours), backend=backend(), dynamic=False)
train(parallel, images[2 * rank : 2 * rank + 2])
dist.barrier()
dist.destroy_process_group()
train(theirs, images)
distance = max(float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), theirs.parameters()))
moved = max(float((a - b).detach().abs().max()) for a, b in zip(network().parameters(), theirs.parameters()))
print(rank, distance < 1e-5 < moved)
"""


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["modules", "layer norms", "compiled"])
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_processes_train_as_one_of_torch(
    runs: str,
    kernels: str,
    tmp_path: Path,
    shared_cache: None,
):
    meeting = tmp_path / "meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(meeting), runs],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outcomes = [process.communicate(timeout=200) for process in processes]

    for rank, (process, (printed, errors)) in enumerate(zip(processes, outcomes, strict=True)):
        assert (process.returncode, printed) == (0, f"{rank} True\n"), errors
