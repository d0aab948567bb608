"""Bytecode that IREE's runtime interprets on every machine: slow, and independent of the other code generators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import wrong_f8_rounding
from dispatch_profiler.targets.by_architecture import ByArchitecture


@dataclass(frozen=True)
class VmvxTarget(ByArchitecture):
    """One target for all machines."""

    family: ClassVar[str] = "vmvx"
    shipped_list: ClassVar[str] = "vmvx"
    family_flags: ClassVar[tuple[str, ...]] = (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=vmvx",
    )
    device: ClassVar[str] = "local-task"
    describes_gpus: ClassVar[bool] = False

    def unsupported_reason(self, operation: Operation) -> str | None:
        """See `Target.unsupported_reason`."""
        return wrong_f8_rounding(operation, self.family)
