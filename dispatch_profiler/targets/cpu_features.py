"""Features of CPUs under the names of LLVM, and whether this CPU has them."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch_profiler.targets.cpu import host_cpu

#: LLVM's name -> Linux's, where they differ in more than `.`, `-` and `_`.
_NAMES = {
    "64bit": "lm",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "complxnum": "fcma",
    "crc": "crc32",
    "crc32": "sse4_2",
    "dotprod": "asimddp",
    "evex512": "avx512f",
    "fp-armv8": "fp",
    "fp16fml": "asimdfhm",
    "fullfp16": "asimdhp",
    "jsconv": "jscvt",
    "lse": "atomics",
    "lzcnt": "abm",
    "neon": "asimd",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "rcpc": "lrcpc",
    "rdm": "asimdrdm",
    "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
    "x87": "fpu",
}
#: Features that LLVM detects although Linux does not let programs use them; no instruction of a kernel needs them.
_IGNORED = frozenset({"shstk"})


def missing_features(names: Iterable[str]) -> tuple[str, ...]:
    """The features among `names`, in LLVM's spelling, that this CPU lacks or that Linux does not report."""
    found = {_plain(each) for each in host_cpu().features}
    return tuple(
        name for name in names if name not in _IGNORED and _plain(_NAMES.get(name, name)) not in found
    )


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "")
