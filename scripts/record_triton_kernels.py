"""Record the times of Triton kernels on a GPU, for the rule that chooses among them.

    python scripts/record_triton_kernels.py -o FILE.jsonl.gz [--seconds 300] [--seed 0] [--operations 90]

Draws products and convolutions by a seed. For each of them, all kernels that the rule chooses among are compiled in
parallel, and measured in CUDA graphs beside torch's. A line of FILE has one operation, the microseconds of torch, and
(configuration, microseconds) pairs, the fastest first. The machine needs Triton, torch and the GPU, but no compiler of IREE.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from torch.cuda import is_available

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.gpu_kernels import Code, compiled, results
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target
from dispatch_profiler.targets.untuned.triton.tiles import triton_candidates

#: FLOP and bytes of an operation at most.
_FLOP, _BYTES = 3e11, 1.5e9
_ROWS = (1, 2, 4, 8, 16, 32, 49, 64, 77, 128, 197, 256, 384, 512, 1024, 1576, 2048, 4096, 6304, 8192)
_EXTENTS = (
    64,
    96,
    128,
    192,
    256,
    320,
    384,
    512,
    640,
    768,
    1024,
    1280,
    1536,
    2048,
    3072,
    4096,
    5120,
    8192,
    11008,
    14336,
)
_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048)
_SIZES = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)
_BATCHES = (1, 1, 2, 4, 8, 16, 32, 64)


def drawn_operations(seed: int) -> Iterator[Operation]:
    """Without end; products of f16 and of f32, products of batches, and convolutions in all modes."""
    rng = np.random.default_rng(seed)
    families: tuple[Callable[[np.random.Generator], Operation], ...] = (
        _linear, _forward, _linear, _backward, _linear, _forward, _single, _forward, _batched, _linear,
    )  # fmt: skip
    while True:
        for draw in families:
            operation = draw(rng)
            operands = sum(each.elements * each.type.bytes for each in operation.operands)
            if operation.flops <= _FLOP and operands <= _BYTES:
                yield operation


def _types(rng: np.random.Generator) -> ElementTypes:
    name = str(rng.choice(["f16", "bf16"]))
    return ElementTypes(name, name, name)


def _linear(rng: np.random.Generator) -> Operation:
    m, n, k = (int(rng.choice(each)) for each in (_ROWS, _EXTENTS, _EXTENTS))
    return Matmul(m, n, k, _types(rng), rhs_layout=str(rng.choice(["n", "n", "t"])))


def _single(rng: np.random.Generator) -> Operation:
    m, n, k = (int(rng.choice(each[:15])) for each in (_ROWS, _EXTENTS, _EXTENTS))
    return Matmul(m, n, k, rhs_layout=str(rng.choice(["n", "t"])))


def _batched(rng: np.random.Generator) -> Operation:
    m, n, k = (int(rng.choice(each[:12])) for each in (_ROWS[5:], _EXTENTS, _EXTENTS))
    return BatchMatmul(
        int(rng.choice([8, 12, 16, 64])), m, n, k, _types(rng), rhs_layout=str(rng.choice(["n", "t"]))
    )


def _forward(rng: np.random.Generator) -> Operation:
    return _convolution(rng, "forward")


def _backward(rng: np.random.Generator) -> Operation:
    return _convolution(rng, str(rng.choice(["input_backward", "weight_backward"])))


def _convolution(rng: np.random.Generator, mode: str) -> Operation:
    size, taps = int(rng.choice(_SIZES)), int(rng.choice([1, 1, 3, 3, 3, 5]))
    stride = int(rng.choice([1, 1, 1, 2])) if size > 7 else 1
    output = (size + taps // 2 * 2 - taps) // stride + 1
    return Conv2d(
        int(rng.choice(_BATCHES)),
        output,
        output,
        int(rng.choice(_CHANNELS)),
        int(rng.choice(_CHANNELS)),
        taps,
        taps,
        (stride, stride),
        padding=(taps // 2, taps // 2),
        types=_types(rng),
        layout="nhwc_fhwc_nhwc",
        mode=mode,
    )


def main() -> int:
    """Record until the operations are done or the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="operations of the seed that are left out")
    parser.add_argument("--operations", type=int, default=90)
    parser.add_argument("--workers", type=int, default=16, help="processes that compile (default: 16)")
    options = parser.parse_args()
    if not is_available():
        parser.error("torch finds no NVIDIA GPU to measure on")
    deadline = time.monotonic() + options.seconds
    target, drawn = parse_target("cuda:h200"), drawn_operations(options.seed)
    operations = [next(drawn) for _ in range(options.skip + options.operations)][options.skip :]
    with ProcessPoolExecutor(options.workers) as pool, gzip.open(options.output, "wt") as file:
        pending = {
            operation: {
                each: pool.submit(compiled, Dispatch(operation, each))
                for each in triton_candidates(operation, target)
            }
            for operation in dict.fromkeys(operations)
        }
        for number, (operation, futures) in enumerate(pending.items()):
            if time.monotonic() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            made = {each: future.result() for each, future in futures.items()}
            codes = {Dispatch(operation, each): code for each, code in made.items() if isinstance(code, Code)}
            found = results(operation, codes, deadline)
            times = [(found.get(each.name), each) for each in made]
            pairs = sorted(
                ((us, each) for us, each in times if isinstance(us, float)), key=lambda pair: pair[0]
            )
            line = {
                "operation": operation.to_dict(),
                "name": operation.name,
                "torch": [
                    us for side in ("torch", "torch again") if isinstance(us := found.get(side), float)
                ],
                "times": [[each.to_dict(), round(us, 3)] for us, each in pairs],
                "problems": {name: each for name, each in found.items() if isinstance(each, str)},
            }
            file.write(json.dumps(line) + "\n")
            file.flush()
            first = f"{pairs[0][1].name} {pairs[0][0]:.1f} us" if pairs else "none"
            print(
                f"{number + 1} {deadline - time.monotonic():.0f} s left {operation.name}: {len(pairs)} kernels, {first}, torch {line['torch']}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
