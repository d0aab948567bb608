"""What becomes a fused region: which operations begin one, and which steps may follow them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.operations import STEP_KINDS


class Root(str, Enum):
    """An operation that begins a region, by the name of its aten operator where it has one."""

    CONVOLUTION = "convolution"
    TRANSPOSED_CONVOLUTION = "transposed_convolution"
    LAYER_NORM = "layer_norm"
    #: mm, addmm and bmm, which linear layers become.
    MATRIX_PRODUCT = "matrix_product"
    #: The gradients of input, weight and bias.
    CONVOLUTION_BACKWARD = "convolution_backward"
    LAYER_NORM_BACKWARD = "layer_norm_backward"
    #: Cheap operators between other regions, or behind the last ones, in inference: see `glue`.
    GLUE = "glue"

    def __str__(self) -> str:
        return self.value


#: Every step that an epilogue can have: see docs/epilogues.md.
ALL_STEPS = frozenset(STEP_KINDS)
#: Roots whose kernels have an epilogue.
_HAVE_STEPS = (Root.CONVOLUTION, Root.TRANSPOSED_CONVOLUTION, Root.MATRIX_PRODUCT)


@dataclass(frozen=True)
class FusionRule:
    """Regions that begin with `root`, and take in the steps of `steps` that follow it, for as long as that is legal.

    Steps are named as in epilogues: `bias`, `scale_shift` (batch norm in inference), `residual`, `relu`, ... Raises
    UsageError for an unknown name, and for steps of a root that has none.
    """

    root: Root
    steps: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "root", Root(self.root))
        except ValueError:
            known = [each.value for each in Root]
            raise UsageError(
                f"unknown root {self.root!r}", hint=did_you_mean(str(self.root), known)
            ) from None
        object.__setattr__(self, "steps", frozenset(self.steps))
        unknown = sorted(self.steps - ALL_STEPS)
        if unknown:
            raise UsageError(f"unknown step {unknown[0]!r}", hint=did_you_mean(unknown[0], ALL_STEPS))
        if self.steps and self.root not in _HAVE_STEPS:
            raise UsageError(
                f"no steps can follow {self.root}", hint=f"write FusionRule({self.root.value!r})"
            )


@dataclass(frozen=True)
class FusionSchema:
    """The rules by which a graph is fused, at most one for each root.

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

    def rule_for(self, root: Root) -> FusionRule | None:
        """The rule of a root; None if nothing begins with it."""
        return next((rule for rule in self.rules if rule.root is root), None)

    def without(self, root: Root) -> FusionSchema:
        """The schema without the rule of `root`, given as such or by its name."""
        return FusionSchema(tuple(rule for rule in self.rules if rule.root != root))

    def with_rules(self, rules: Iterable[FusionRule]) -> FusionSchema:
        """The schema with `rules` in addition; they replace the rules of the same roots."""
        added = tuple(rules)
        replaced = {rule.root for rule in added}
        return FusionSchema((*(rule for rule in self.rules if rule.root not in replaced), *added))


#: Convolutions with bias, batch norm, residual and activation; layer norms; and what connects them.
DEFAULT_SUPPORTED_BOO_FUSIONS = FusionSchema(
    (
        FusionRule(Root.CONVOLUTION, ALL_STEPS),
        FusionRule(Root.TRANSPOSED_CONVOLUTION, ALL_STEPS),
        FusionRule(Root.LAYER_NORM),
        FusionRule(Root.GLUE),
    )
)
#: The same, and matrix products with bias, residual and activation.
BOO_FUSIONS_WITH_MATRIX_PRODUCTS = DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(
    [FusionRule(Root.MATRIX_PRODUCT, ALL_STEPS)]
)
#: Roots of gradients.
GRADIENTS = frozenset((Root.CONVOLUTION_BACKWARD, Root.LAYER_NORM_BACKWARD))
#: Roots of regions that torch may compute faster. What connects regions is not worth a change to torch's threads.
MEASURED = frozenset(Root) - {Root.GLUE} - GRADIENTS
#: What `BOO_USE_BACKWARD_KERNELS=1` adds, for gradients whose kernels are faster than torch. A schema that has these
#: rules itself takes every gradient that kernels express.
BACKWARD_FUSIONS = (FusionRule(Root.CONVOLUTION_BACKWARD), FusionRule(Root.LAYER_NORM_BACKWARD))
