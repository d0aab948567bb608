"""Draw graphs and compare them with eager torch: `search_graphs.py [--backend=iree_boo] [--first=0] [--count=5000]`.

Prints each graph that differs, reduced, with its seed. With --state=FILE, a later call with the same options continues
where this one ended; a seed with which the process ended twice is passed over and listed. Exit status 1 if any graph
differs or is passed over.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from drawing import draw, is_sound
from drawn_graphs import DrawnGraph
from graph_backends import differences_of
from graph_reducer import reduced


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="iree_boo", choices=("iree_boo", "iree_boo_inductor"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--state", type=Path, help="a file with what is done and which seeds differ")
    parser.add_argument("--no-reduce", action="store_true", help="print graphs as they were drawn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("dispatch_profiler.boo").addHandler(logging.NullHandler())
    state = _read(given.state)
    began = time.monotonic()
    for number in range(state["done"], given.count):
        seed = given.first + number
        if _is_passed_over(seed, state):
            continue
        _write(given.state, state)
        found = differences_of(draw(seed), given.backend)
        if found:
            state["differ"].append(seed)
            _show(draw(seed), found, given.backend, reduces=not given.no_reduce)
        state["done"] = number + 1
        _write(given.state, state)
        if number % 50 == 49:
            taken = time.monotonic() - began
            print(f"{number + 1} graphs, {len(state['differ'])} differ, {taken:.0f} s", flush=True)
    print(
        f"{state['done']} graphs from seed {given.first} with {given.backend}; those that differ: {state['differ']}"
    )
    if state["passed_over"]:
        print(f"seeds with which the process ended: {state['passed_over']}")
    return 1 if state["differ"] or state["passed_over"] else 0


def _is_passed_over(seed: int, state: dict[str, Any]) -> bool:
    """Whether earlier processes ended twice with `seed`, as where torch itself crashes; notes that it is begun now."""
    times = 1 + (state["times_begun"] if state["begun"] == seed else 0)
    state["begun"], state["times_begun"] = seed, times
    if times > 2:
        state["passed_over"].append(seed)
    return times > 2


def _show(graph: DrawnGraph, found: list[str], backend: str, *, reduces: bool) -> None:
    if reduces:
        graph = reduced(graph, lambda each: is_sound(each) and bool(differences_of(each, backend)))
        found = differences_of(graph, backend) or found
    print(graph, *found, "", sep="\n", flush=True)


def _read(path: Path | None) -> dict[str, Any]:
    if path is not None and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"done": 0, "differ": [], "passed_over": [], "begun": None, "times_begun": 0}


def _write(path: Path | None, state: dict[str, Any]) -> None:
    if path is not None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(state))
        os.replace(unfinished, path)


if __name__ == "__main__":
    sys.exit(main())
