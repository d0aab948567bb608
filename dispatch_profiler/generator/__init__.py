"""Operations x configurations -> a generated tree with its manifest."""

from dispatch_profiler.generator.emit import check_tree, emit
from dispatch_profiler.generator.plan import Choices, LeftOut, Plan, plan_generation
from dispatch_profiler.generator.render import render_module

__all__ = [
    "Choices",
    "LeftOut",
    "Plan",
    "check_tree",
    "emit",
    "plan_generation",
    "render_module",
]
