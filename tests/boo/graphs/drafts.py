"""Graphs while they are drawn: their lines are run at once, so that each fits the tensors that it gets."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from drawn_graphs import MODES, Declared, DrawnGraph, Step
from torch.nn import functional

#: Elements of a tensor.
_ELEMENTS = 6000


class Unfit(Exception):
    """No tensor fits a line that was drawn."""


class Draft:
    """A graph while it is drawn, with the tensors that its lines give."""

    def __init__(self, seed: int, draw: random.Random) -> None:
        self.seed = seed
        self.draw = draw
        self.type = draw.choice(("f32", "f32", "f32", "bf16"))
        self.mode = draw.choice(("grad", "no_grad", "no_grad", "inference_mode"))
        #: How often a line reads what the line before it made, and how often one of the last three.
        self.newest, self.recent = draw.choice(((0.9, 1.0), (0.75, 0.9), (0.75, 0.9), (0.2, 0.7)))
        self.declared: list[Declared] = []
        self.steps: list[Step] = []
        #: Values that lines may read, the newest last.
        self.values: dict[str, torch.Tensor] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def declare(self, role: str, shape: tuple[int, ...], **more: Any) -> str:
        """The name of a new tensor."""
        prefix = {"input": "x", "parameter": "p", "buffer": "b"}[role]
        each = Declared(f"{prefix}{len(self.declared)}", role, shape, **more)
        self.declared.append(each)
        graph = DrawnGraph(self.seed, self.type, self.mode, (each,), (), ())
        made = graph.tensor(each)
        if self.mode == "grad" and (role == "parameter" or each.requires_grad):
            made = made.requires_grad_()
        self.tensors[each.name] = made
        return each.name

    def parameter(self, *shape: int, scale: float = 1.0) -> str:
        """The name of a new parameter."""
        memory = "channels" if len(shape) in (4, 5) and self.chance(0.2) else "rows"
        return self.declare("parameter", shape, scale=scale, memory=memory)

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda each: True) -> str:
        """A value that fits, more often one of the newest. Raises Unfit."""
        names = [name for name, each in self.values.items() if each.is_floating_point() and fits(each)]
        if not names:
            raise Unfit
        chance = self.draw.random()
        if chance < self.newest:
            return names[-1]
        return self.draw.choice(names[-3:] if chance < self.recent else names)

    def add(self, code: str, reads: list[str], count: int = 1) -> bool:
        """Run a line, and keep it unless torch raises an error or the result is too large or too small."""
        tensors = {**self.tensors, **self.values}
        scope = {"torch": torch, "functional": functional}
        given = [f"_{at}" for at in range(len(reads))]
        scope |= {key: tensors[name] for key, name in zip(given, reads, strict=True)}
        makes = tuple(
            f"v{len(self.values)}_{at}" if count > 1 else f"v{len(self.values)}" for at in range(count)
        )
        text = code.format(*given)
        try:
            with MODES[self.mode](), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = eval(text, scope) if count else exec(text, scope)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return False
        results = list(found) if count > 1 else [found] * count
        if len(results) != count or not all(0 < each.numel() <= _ELEMENTS for each in results):
            return False
        self.steps.append(Step(code, tuple(reads), makes))
        self.values |= dict(zip(makes, results, strict=True))
        return True
