#!/usr/bin/env python3
"""Tokens per second of a Llama of 1 B parameters with random weights: this package against inductor, OpenVINO and llama.cpp.

    python benchmarks/decoding.py --threads=2 --dtype=bf16
    python benchmarks/decoding.py --threads=2 --dtype=bf16 --bits=4 --layers=4

After a prompt of 64 tokens, one token follows the other, each in a call of its own that returns the logits on the CPU. A static
cache holds 512 tokens; OpenVINO's grows. With `--bits=4`, weights have a scale and a zero for each 32 terms: torchao's
`PrototypeInt4WeightOnlyConfig`, OpenVINO's `INT4_ASYM`, and llama.cpp's `Q4_1`. OpenVINO and llama.cpp then also quantise
activations, as they do for their users. Each side has processes of its own, in turns; its time is the median of its tokens. The
logits of each side are compared with eager torch's, by the cosine between them.

Needs transformers; torchao for `--bits`; optimum-intel and nncf for OpenVINO; llama-cpp-python and gguf for llama.cpp. A
side that is not installed is left out.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_timing import in_new_process
from benchmarks._table import Row, at_least, exit_with, make_parser, positive, report

#: Tokens of the prompt; tokens that are computed before others are timed; tokens that are timed.
PROMPT, WARM, TIMED = 64, 16, 64
#: Turns of all sides.
TURNS, QUICK_TURNS = 3, 1
#: The smallest cosine between logits of a side and of eager torch with the same weights, or with weights that are
#: quantised otherwise: random weights of 16 layers then differ by much, while other models have a cosine of about 0.
SAME, ALIKE = 0.999, 0.5
#: The target: times as fast as the fastest peer.
GOAL = 1.0
SIDES = ("eager", "inductor", "freezing", "OpenVINO", "llama.cpp", "ours", "ours frozen")
PEERS = SIDES[1:5]


def measure(
    side: str, threads: int, layers: int, dtype: str, bits: int
) -> tuple[list[float], list[float]] | str:
    """Milliseconds of each token, and the logits of the second one; or why the side has none."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    warnings.simplefilter("ignore")
    import torch

    from benchmarks._decoding_sides import VOCABULARY, Setting, sides

    torch.set_num_threads(threads)
    prompt = torch.randint(0, VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    try:
        decoder = sides()[side](Setting(threads, layers, dtype, bits))
        decoder.read(prompt)
        logits = decoder.next(1).float().tolist()
        taken = []
        for token in range(WARM + TIMED):
            start = time.perf_counter()
            decoder.next(token)
            taken.append((time.perf_counter() - start) * 1e3)
    except ImportError as error:
        return f"not installed: {error}"
    except Exception as error:  # whatever a compiler raises
        return f"{type(error).__name__}: {error}"[:200]
    return taken[WARM:], logits


def cosine(one: list[float], other: list[float]) -> float:
    """The cosine between two vectors."""
    import numpy as np

    a, b = np.array(one), np.array(other)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def rows(options: Namespace) -> list[Row]:
    """Measure all sides in turns, and print a line for each. Raises SystemExit if logits differ."""
    times: dict[str, list[float]] = {}
    logits: dict[str, list[float]] = {}
    failed: set[str] = set()
    for _ in range(QUICK_TURNS if options.quick else TURNS):
        for side in SIDES:
            if side in failed:
                continue
            found = in_new_process(
                measure, side, options.threads, options.layers, options.dtype, options.bits
            )
            if isinstance(found, str):
                failed.add(side)
                print(f"{side}: {found}", flush=True)
                continue
            times.setdefault(side, []).extend(found[0])
            logits[side] = found[1]
    if "eager" not in times:
        raise SystemExit("eager torch has no logits to compare with: see its line above")
    wrong = []
    for side, taken in times.items():
        middle = statistics.median(taken)
        alike = cosine(logits[side], logits["eager"])
        print(f"{side:12} {middle:8.2f} ms {1e3 / middle:7.1f} tokens/s   cosine with eager {alike:.4f}")
        least = ALIKE if options.bits and side in ("OpenVINO", "llama.cpp") else SAME
        if not alike >= least:
            wrong.append(f"{side}: its logits differ from those of eager torch: {alike:.4f} < {least}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    peers = {side: statistics.median(times[side]) for side in PEERS if side in times}
    name, best = min(peers.items(), key=lambda each: each[1])
    what = (
        f"{options.layers} layers, {options.dtype}, {options.bits or 'all'} bits, {options.threads} threads"
    )
    return [
        at_least(f"{what}: {side} over {name}", best / statistics.median(times[side]), "times as fast", GOAL)
        for side in ("ours", "ours frozen")
        if side in times
    ]


def main() -> int:
    """Measure, print the table, and return the exit status."""
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count(), help="threads of all sides (default: all)"
    )
    parser.add_argument(
        "--dtype", choices=("f32", "bf16"), default="bf16", help="of activations (default: bf16)"
    )
    parser.add_argument(
        "--bits", type=int, choices=(0, 4, 8), default=0, help="of weights; 0: as activations (default: 0)"
    )
    parser.add_argument("--layers", type=positive, default=16, help="of the model (default: 16)")
    options = parser.parse_args()
    return report(rows(options), options.json)


if __name__ == "__main__":
    exit_with(main)
