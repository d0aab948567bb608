"""A vector kernel that the generator writes, for convolutions of any number of images with a constant weight, on CPUs.

It is the microkernel of one image: each image is divided among workgroups in the same way, and a launch takes the number of
images from its operands.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from dispatch_profiler.configurations._base import Limits, WrittenKernel
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.cpu.plans.microkernel import LANES, MicrokernelPlan
from dispatch_profiler.configurations.forms.builder import Step
from dispatch_profiler.operations import ErrorBound, Operation


@dataclass(frozen=True)
class ImagesMicrokernel(WrittenKernel):
    """Tiles in elements: `ImagesMicrokernel((14, 64), (1, 14, 32))`. The operation has the most images.

    The fields are those of `Microkernel`, whose weight is packed.
    """

    kind: ClassVar[str] = "images_microkernel"
    yaml_key: ClassVar[str] = "images_microkernel"
    yaml_field: ClassVar[str] = "registers"
    template: ClassVar[str] = "images_microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_images"

    distribution: tuple[int, int]
    registers: tuple[int, int, int]
    unroll: int = 4
    lanes: int = LANES
    pairs: bool = False
    rounds: bool = False

    def __post_init__(self) -> None:
        of_image = self._of_image  # checks the fields
        object.__setattr__(self, "distribution", of_image.distribution)
        object.__setattr__(self, "registers", of_image.registers)

    @classmethod
    def of(cls, microkernel: Microkernel) -> ImagesMicrokernel | None:
        """The kernel of any number of images with the tiles of `microkernel`; None if that does not pack, or has a margin."""
        if not microkernel.packed or microkernel.margin:
            return None
        return cls(**{each.name: getattr(microkernel, each.name) for each in fields(cls)})

    @property
    def name(self) -> str:
        """`tile_config_images_microkernel_14x64_1x14x32_u4[_lanes8][_pairs][_rounds]`"""
        return self._of_image.name.replace("_packed_microkernel_", "_images_microkernel_")

    @property
    def _of_image(self) -> Microkernel:
        return Microkernel(
            self.distribution,
            self.registers,
            self.unroll,
            packed=True,
            lanes=self.lanes,
            pairs=self.pairs,
            rounds=self.rounds,
        )

    def plan(self, operation: Operation) -> MicrokernelPlan:
        """The loops and addresses that the template writes."""
        return self._of_image.plan(operation)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        return self._of_image.error_bound(operation)

    # -- packing ------------------------------------------------------------------------------

    @property
    def packs_weight(self) -> bool:
        return True

    def packing(self, operation: Operation) -> tuple[Step, ...]:
        return self._of_image.packing(operation)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        if operation.convolution is None or operation.with_batch(1) is None:
            return f"microkernels for any number of images are for forward convolutions, not for {operation.kind}"
        reason = self._of_image.invalid_reason(operation, limits)
        if reason is None and self.plan(operation).converts_images:
            return "microkernels for any number of images multiply bf16 in pairs of channels only"
        return reason
