"""How a worker process refers to vmfbs that it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VmfbRef:
    """A vmfb that this process holds (see `receive`), by the hash of its content."""

    sha256: str
    #: Executions of a dispatch per call.
    repeat: int
    #: For a library: loaded with `Library.load_repeated` instead of called eagerly.
    is_repeated: bool = False

    @property
    def is_library(self) -> bool:
        """Whether it stands for the library of this process."""
        return not self.sha256


#: The library of this process, called eagerly; it needs no vmfb.
LIBRARY = VmfbRef("", 1)


@dataclass(frozen=True)
class VmfbRefs:
    """The two vmfbs of a dispatch. `packs_weight`: only the verify vmfb packs the weight in every call."""

    verify: VmfbRef
    profile: VmfbRef
    packs_weight: bool = False
