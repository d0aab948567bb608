"""What launches keep in the memory of this process, in one object: `SESSION`.

    SESSION.clear()                          as if nothing had been launched
    SESSION.clear("kernels", "launchables")  kernels are looked up in the launch cache again

What a program holds, such as a launchable, still works after that. A forked process has what its parent had: each part
renews its locks, and launchables load their kernels again, on the devices of the child.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

#: Part -> what it keeps. The module that knows how to make a part adds it when the module is imported.
PARTS: Mapping[str, str] = {
    "kernels": "operation, target and settings -> compiled kernel (`boo.kernels.provider`)",
    "batch_kernels": "dispatch, target and settings -> kernel for several numbers of rows (`boo.kernels.any_batch`)",
    "batch_rules": "operation and target -> the kernel that a rule chooses for any number of rows (`boo.kernels.any_batch`)",
    "uses": "operation -> where its kernel comes from (`boo.kernels.uses`)",
    "launchables": "signature and settings -> launchable (`boo.driver.launch`)",
    "packed_launches": "signature and settings -> launch with a packed weight (`boo.driver.launch`)",
    "batch_launches": "signature and settings -> launch of a kernel for any number of rows (`boo.driver.launch`)",
    "convolutions": "shapes, strides and types -> how `boo_conv` computes the call (`boo.ops.conv_plans`)",
    "layer_norms": "shapes and types -> launchable of `boo_layer_norm` (`boo.ops.layer_norm`)",
    "attentions": "shapes and types -> launchable of `boo_attention` (`boo.ops.attention`)",
    "regions": "text of a run of regions -> its call, with derived operands (`boo.fusion.execute.torch_operator`)",
    "batch_regions": "text of a run for any batch, and shapes -> its call (`boo.fusion.execute.batch_operator`)",
    "frozen_models": "code and graph -> model whose calls pass no weights (`boo.backends.frozen_calls`)",
    "weights": "memory of a weight -> its snapshot, and what derives from it (`boo.weights.snapshots`)",
}


class SessionPart(Protocol):
    """A part of a session."""

    def clear(self) -> None:
        """Drop all that this part keeps."""


Part = TypeVar("Part", bound=SessionPart)


class Session:
    """The parts that modules have added so far, by name (see `PARTS`)."""

    def __init__(self) -> None:
        self._parts: dict[str, SessionPart] = {}

    def keep(self, name: str, part: Part) -> Part:
        """Add `part` under a name of `PARTS`, and return it. Raises ValueError for other names, and for names in use."""
        if name not in PARTS or name in self._parts:
            raise ValueError(f"{name!r} is not a free part of a session")
        self._parts[name] = part
        return part

    def clear(self, *names: str) -> None:
        """Drop what the parts with these names keep, or all parts. Raises ValueError for other names than in `PARTS`."""
        for name in names or PARTS:
            if name not in PARTS:
                raise ValueError(f"{name!r} is not a part of a session: available are {', '.join(PARTS)}")
            if name in self._parts:
                self._parts[name].clear()


SESSION = Session()
