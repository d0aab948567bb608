"""The rules for fused regions: the operators that start a region, and the steps that may follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dispatch_profiler.boo.fusion.roots._base import RootTraits, root_families
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.operations import STEP_KINDS

#: The root of regions of cheap operators between or after other regions, in inference: see `glue`.
GLUE = "glue"
#: Operators that start a region, by the names of their aten operators except for `glue`.
ROOTS: Mapping[str, RootTraits] = {
    **{name: traits for family in root_families() for name, traits in family.roots.items()},
    GLUE: RootTraits(is_default=True),
}
#: Every step that an epilogue can have: see docs/epilogues.md.
ALL_STEPS = frozenset(STEP_KINDS)


@dataclass(frozen=True)
class FusionRule:
    """Regions that start with `root`, and include following `steps` as long as that is legal.

    Steps are named as in epilogues: `bias`, `scale_shift` (batch norm in inference), `residual`, `relu`, ... Raises
    UsageError for an unknown name, and for steps of a root that cannot have steps.
    """

    root: str
    steps: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.root not in ROOTS:
            raise UsageError(f"unknown root {self.root!r}", hint=did_you_mean(str(self.root), ROOTS))
        object.__setattr__(self, "steps", frozenset(self.steps))
        unknown = sorted(self.steps - ALL_STEPS)
        if unknown:
            raise UsageError(f"unknown step {unknown[0]!r}", hint=did_you_mean(unknown[0], ALL_STEPS))
        if self.steps and not ROOTS[self.root].has_steps:
            raise UsageError(f"no steps can follow {self.root}", hint=f"write FusionRule({self.root!r})")


@dataclass(frozen=True)
class FusionSchema:
    """The rules for fusing a graph, at most one for each root.

        FusionSchema((FusionRule("convolution", {"bias", "relu"}), FusionRule("layer_norm")))

    Raises UsageError if two rules have the same root.
    """

    rules: tuple[FusionRule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        roots = [rule.root for rule in self.rules]
        if len(set(roots)) < len(roots):
            raise UsageError("a fusion schema has at most one rule for each root")

    @property
    def text(self) -> str:
        """A line for each rule: equal for equal schemas, in every process."""
        return "\n".join(f"{rule.root} {sorted(rule.steps)}" for rule in self.rules)

    def rule_for(self, root: str) -> FusionRule | None:
        """The rule of a root; None if no region starts with it."""
        return next((rule for rule in self.rules if rule.root == root), None)

    def without(self, root: str) -> FusionSchema:
        """The schema without the rule of `root`."""
        return FusionSchema(tuple(rule for rule in self.rules if rule.root != root))

    def with_rules(self, rules: Iterable[FusionRule]) -> FusionSchema:
        """The schema with additional `rules`, which replace rules of the same roots."""
        added = tuple(rules)
        replaced = {rule.root for rule in added}
        return FusionSchema((*(rule for rule in self.rules if rule.root not in replaced), *added))


#: Convolutions with bias, batch norm, residual and activation; layer norms; and the glue that connects them.
DEFAULT_SUPPORTED_BOO_FUSIONS = FusionSchema(
    tuple(
        FusionRule(name, ALL_STEPS if traits.has_steps else frozenset())
        for name, traits in ROOTS.items()
        if traits.is_default
    )
)
#: `DEFAULT_SUPPORTED_BOO_FUSIONS`, and matrix products with bias, residual and activation.
BOO_FUSIONS_WITH_MATRIX_PRODUCTS = DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(
    [FusionRule(MATRIX_PRODUCT, ALL_STEPS)]
)
#: Roots of gradients.
GRADIENTS = frozenset(name for name, traits in ROOTS.items() if traits.is_gradient)
#: Roots of regions that torch may compute faster. Glue is not among them: it is not worth a change to torch's threads.
MEASURED = frozenset(ROOTS) - {GLUE} - GRADIENTS
#: Rules that `BOO_USE_BACKWARD_KERNELS=1` adds, for gradients whose kernels are faster than torch. A schema that contains
#: them itself fuses every gradient that kernels can compute.
BACKWARD_FUSIONS = tuple(FusionRule(name) for name in sorted(GRADIENTS))
