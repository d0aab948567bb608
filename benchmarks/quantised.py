#!/usr/bin/env python3
"""Quantised linear layers on this CPU: this package against inductor, also with `freezing`, OpenVINO and ONNX Runtime.

    python benchmarks/quantised.py --threads=2
    python benchmarks/quantised.py --threads=2 --dtype=bf16 --quick
    python benchmarks/quantised.py --drawn=300                        compares results instead

Two layers with an activation between them, 4096 -> 11008 -> 4096, of 1 to 1,024 rows. `weights` are i8 with a scale for each
output; with `dynamic`, activations are i8, too, with a scale for each row; `int4` are weights of 4 bits with a scale and a zero
for each 32 terms, whose kernel in torch for f32 takes seconds with many rows. inductor and this package compile the module that torchao quantised,
and are compared with eager torch. OpenVINO and ONNX Runtime quantise the layers with their own tools, as their users do: with
`int4`, they also quantise activations to i8, so that they compute something less precise. They are left out if they are not
installed. All sides are timed in turns. A ratio is the fastest peer's time over ours: over 1, we are faster.
Each case has a process of its own. With `--drawn`, so many layers of f32, bf16 and f16 are drawn by a seed, with and without
bias and activation, frozen or not; each result is compared with torch's and with float64.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._model_timing import BACKEND, geometric_mean, in_new_process, speedup
from benchmarks._table import Row, at_least, at_most, exit_with, make_parser, positive, report
from benchmarks.zoo import TYPES, _in_turns

#: Targets of the geometric mean, and of the worst case.
GOAL, WORST = 1.1, 0.95
#: Rounds, and the least seconds of calls in each of them.
ROUNDS, SECONDS = 9, 0.1
#: Widths of the layers: those of a Llama with 7 B parameters.
WIDTH, INNER = 4096, 11008
#: Kinds of quantisation, and the modules and names of torchao's configurations.
KINDS = {
    "weights": ("torchao.quantization", "Int8WeightOnlyConfig"),
    "dynamic": ("torchao.quantization", "Int8DynamicActivationInt8WeightConfig"),
    "int4": ("torchao.prototype.quantization.int4", "PrototypeInt4WeightOnlyConfig"),
}
#: Terms of weights of 4 bits with the same scale.
GROUP = 32
ROWS, QUICK_ROWS = (1, 4, 16, 128, 1024), (1, 16)
#: The largest difference from eager torch, in units of the largest element, by type. A rounding that differs moves a value
#: that is quantised to the next whole number.
TOLERANCES = {"f32": 1e-2, "bf16": 5e-2}
#: The largest difference of sides that quantise the layers themselves from the layers in floating point, of norms.
LARGEST_LOSS = 0.15
OURS, FROZEN = "ours", "ours frozen"
PEERS = ("inductor", "freezing", "OpenVINO", "ONNX Runtime")


@dataclass(frozen=True)
class Case:
    """What is quantised, rows, and the type of activations."""

    kind: str
    rows: int
    dtype: str
    threads: int


def configuration(kind: str, group: int = GROUP) -> Any:
    """torchao's configuration of a kind of `KINDS`."""
    module, name = KINDS[kind]
    made = getattr(import_module(module), name)
    return made(group_size=group) if kind == "int4" else made()


def sides() -> Mapping[str, Callable[[Any], Any]]:
    """What compiles a module."""
    import torch

    return {
        "inductor": lambda module: torch.compile(module, dynamic=False),
        "freezing": lambda module: torch.compile(module, dynamic=False, options={"freezing": True}),
        OURS: lambda module: torch.compile(module, dynamic=False, backend=BACKEND),
        FROZEN: lambda module: torch.compile(
            module, dynamic=False, backend=BACKEND, options={"freeze": True}
        ),
    }


def measure(case: Case) -> dict[str, tuple[float, ...] | str]:
    """Milliseconds of a call of each side, one figure a round; or why a side has none."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.threads])
    warnings.simplefilter("ignore")
    import torch
    import torchao.quantization
    from torch import nn

    torch.set_num_threads(case.threads)
    torch.manual_seed(1)
    dtype = getattr(torch, TYPES[case.dtype])
    module: Any = nn.Sequential(nn.Linear(WIDTH, INNER), nn.SiLU(), nn.Linear(INNER, WIDTH)).eval().to(dtype)
    plain = copy.deepcopy(module).float()
    torchao.quantization.quantize_(module, configuration(case.kind))
    x = torch.randn(case.rows, WIDTH, dtype=dtype)
    found: dict[str, tuple[float, ...] | str] = {}
    runs = {}
    with torch.no_grad():
        expected = module(x).float()
        for name, compile_ in sides().items():
            torch._dynamo.reset()
            try:
                compiled = compile_(module)
                error = float((compiled(x).float() - expected).abs().max() / expected.abs().max())
            except Exception as failure:  # whatever a compiler raises
                found[name] = f"{type(failure).__name__}: {failure}"[:200]
                continue
            if error > TOLERANCES[case.dtype]:
                found[name] = f"its error is {error:.1e}"
                continue
            runs[name] = lambda compiled=compiled: compiled(x)
        for name, run in other_sides(plain, x.float(), case).items():
            if isinstance(run, str):
                found[name] = run
            else:
                runs[name] = run
        found.update(_in_turns(runs, ROUNDS, SECONDS))
    return found


def other_sides(module: Any, x: Any, case: Case) -> dict[str, Callable[[], Any] | str]:
    """What runs layers in f32 that other tools quantise; or why a side cannot."""
    from benchmarks._quantised_peers import onnx_runtime_side, openvino_side

    expected = module(x)
    found: dict[str, Callable[[], Any] | str] = {}
    for name, side in (("OpenVINO", openvino_side), ("ONNX Runtime", onnx_runtime_side)):
        try:
            run = side(copy.deepcopy(module), x, case.kind, GROUP, case.threads, case.dtype)
            loss = float((run() - expected).norm() / expected.norm())
        except ImportError as error:
            found[name] = f"not installed: {error}"
        except Exception as error:  # whatever other tools raise
            found[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        else:
            found[name] = run if loss < LARGEST_LOSS else f"its loss is {loss:.2f}"
    return found


def drawn_rows(options: Namespace) -> list[Row]:
    """Compare drawn layers, and print those beyond a bound. Raises SystemExit without torchao."""
    check_torchao()
    from benchmarks._drawn_quantised import check_drawn

    of_torch, of_float64, wrong = check_drawn(options.drawn, options.seed)
    for each in wrong:
        print(f"beyond a bound: {each}")
    what = f"{options.drawn} drawn layers: largest difference from"
    return [
        at_most(f"{what} torch", of_torch, "of the bound", 1.0),
        at_most(f"{what} float64", of_float64, "of the bound", 1.0),
    ]


def check_torchao() -> None:
    """Raise SystemExit without a torchao that has all configurations."""
    if find_spec("torchao") is None:
        raise SystemExit("torchao is not installed: pip install -e '.[bench]'")
    if find_spec("torchao.prototype") is None or find_spec(KINDS["int4"][0]) is None:
        raise SystemExit("this torchao has no weights of 4 bits for CPUs: pip install 'torchao>=0.18'")


def rows(options: Namespace) -> list[Row]:
    """Measure all cases, and print a line for each. Raises SystemExit without torchao."""
    check_torchao()
    ratios: dict[str, list[float]] = {OURS: [], FROZEN: []}
    for kind in KINDS:
        for count in QUICK_ROWS if options.quick else ROWS:
            times = in_new_process(measure, Case(kind, count, options.dtype, options.threads))
            done = {side: each for side, each in times.items() if not isinstance(each, str)}
            listed = [
                f"{side} {each if isinstance(each, str) else f'{sorted(each)[ROUNDS // 2]:.3f} ms'}"
                for side, each in times.items()
            ]
            print(f"{kind}, {count} rows, {options.dtype}: {', '.join(listed)}", flush=True)
            for ours, peers in ((OURS, PEERS[:1]), (FROZEN, PEERS)):
                theirs = [done[each] for each in peers if each in done]
                if ours in done and theirs:
                    ratios[ours].append(min(speedup(done[ours], each) for each in theirs))
    made = []
    for ours, found in ratios.items():
        what = f"{ours}, {len(found)} cases, {options.dtype}, {options.threads} threads"
        if found:
            made.append(at_least(f"{what}: geometric mean", geometric_mean(found), "times as fast", GOAL))
            made.append(at_least(f"{what}: worst", min(found), "times as fast", WORST))
    return made


def main() -> int:
    """Measure, print the table, and return the exit status."""
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count(), help="threads of all sides (default: all)"
    )
    parser.add_argument("--dtype", choices=TYPES, default="f32", help="of activations (default: f32)")
    parser.add_argument(
        "--drawn", type=positive, metavar="N", help="compare the results of N drawn layers instead"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --drawn (default: 0)")
    options = parser.parse_args()
    return report((drawn_rows if options.drawn else rows)(options), options.json)


if __name__ == "__main__":
    exit_with(main)
