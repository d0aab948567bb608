"""Epilogues that tests go through: the simple ones, one of every step, and sequences of them."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import STEP_KINDS, Epilogue

#: What may follow a bias in a kernel that has only that.
ACTIVATION_NAMES = ("none", "relu", "gelu", "sigmoid", "tanh")
#: One of every step, with the numbers of those that take some.
STEP_TEXTS = (
    *(name for name in STEP_KINDS if name not in ("clamp", "scale", "row_scale")),
    "clamp(-1,1)",
    "clamp(-0.3,0.7)",
    "leaky_relu(0.2)",
    "residual(-0.3)",
    "scale(0.5)",
)
#: Of matrix products only, such as those of quantised layers.
OF_ROWS = ("row_scale", "row_scale+channel_scale+bias+silu")
#: As models have them, and in unusual orders.
SEQUENCES = (
    "bias+relu",
    "bias+relu6",
    "bias+silu",
    "bias+hardsigmoid",
    "bias+gelu_tanh",
    "bias+leaky_relu",
    "bias+residual",
    "bias+residual+relu",
    "bias+gelu+residual",
    "bias+clamp(-2,2)",
    "bias+tanh+scale_shift",
    "channel_scale+bias+relu",
    "scale_shift+relu",
    "scale_shift+relu6",
    "scale_shift+silu",
    "scale_shift+hardswish",
    "scale_shift+residual+relu",
    "scale_shift+residual+clamp(-1,1)",
    "scale_shift+gelu",
    "scale_shift+leaky_relu(0.2)+residual",
    "residual+relu",
    "residual+scale_shift+gelu_tanh",
    "residual+residual",
    "residual+tanh+residual+sigmoid",
    "bias+scale_shift+relu",
    "bias+bias",
    "scale_shift+scale_shift",
    "relu+bias",
    "relu6+residual+scale_shift",
    "leaky_relu+bias+leaky_relu(0.5)",
    "gelu+tanh",
    "gelu_tanh+gelu+silu",
    "clamp(-0.3,0.7)+scale_shift+bias+residual+tanh",
)


def simple(bias: bool, activation: str) -> Epilogue:
    """`simple(True, "relu")` -> bias+relu"""
    return Epilogue.parse(f"bias+{activation}" if bias else activation)


SIMPLE = tuple(simple(bias, name) for bias in (False, True) for name in ACTIVATION_NAMES)


def random_epilogue(rng: np.random.Generator, longest: int = 5) -> Epilogue:
    """Up to `longest` steps, with numbers of any sign and size where a step takes some."""

    def text(name: str) -> str:
        if name == "clamp":
            low, high = sorted(np.round(rng.uniform(-2, 2, 2), 3).tolist())
            return f"clamp({low},{high})"
        if name == "leaky_relu" and rng.random() < 0.5:
            return f"leaky_relu({rng.uniform(0.001, 1.5):.3g})"
        if name == "scale" or (name == "residual" and rng.random() < 0.3):
            return f"{name}({rng.choice((-1, 1)) * rng.uniform(0.1, 2):.3g})"
        return name

    count = int(rng.integers(1, longest, endpoint=True))
    known = [name for name in STEP_KINDS if name != "row_scale"]  # which convolutions lack
    return Epilogue.parse("+".join(text(str(name)) for name in rng.choice(known, count)))
