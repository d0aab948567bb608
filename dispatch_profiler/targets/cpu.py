"""CPU targets: this machine (`llvm-cpu`), or a named CPU of any architecture (`llvm-cpu:neoverse-v2`)."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from dispatch_profiler.amx_permission import may_use_amx
from dispatch_profiler.configurations import Limits
from dispatch_profiler.errors import TargetError, nearest
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import (
    KEEP_F64,
    Target,
    f8_beside_f64,
    missing_f64_erf,
    wrong_f8_rounding,
)

# -- cpu names -------------------------------------------------------------------------------------

# Names of CPUs by architecture, as in the LLVM of IREE 3.13.
#
# An unknown name would crash the compiler, and cross-compilation needs the architecture.


_X86_64 = """
    nocona core2 penryn bonnell atom silvermont slm goldmont goldmont-plus tremont nehalem corei7
    westmere sandybridge corei7-avx ivybridge core-avx-i haswell core-avx2 broadwell skylake
    skylake-avx512 skx cascadelake cooperlake cannonlake icelake-client rocketlake icelake-server
    tigerlake sapphirerapids alderlake raptorlake meteorlake arrowlake arrowlake-s lunarlake
    gracemont pantherlake wildcatlake novalake sierraforest grandridge graniterapids graniterapids-d
    emeraldrapids clearwaterforest diamondrapids knl knm k8 athlon64 athlon-fx opteron k8-sse3
    athlon64-sse3 opteron-sse3 amdfam10 barcelona btver1 btver2 bdver1 bdver2 bdver3 bdver4 znver1
    znver2 znver3 znver4 znver5 znver6 c86-4g-m4 c86-4g-m6 c86-4g-m7 c86-4g-m8 x86-64 x86-64-v2
    x86-64-v3 x86-64-v4
"""
_AARCH64 = """
    a64fx ampere1 ampere1a ampere1b ampere1c apple-a10 apple-a11 apple-a12 apple-a13 apple-a14
    apple-a15 apple-a16 apple-a17 apple-a18 apple-a19 apple-a7 apple-a8 apple-a9 apple-m1 apple-m2
    apple-m3 apple-m4 apple-m5 apple-s10 apple-s4 apple-s5 apple-s6 apple-s7 apple-s8 apple-s9
    armagicpu c1-nano c1-premium c1-pro c1-ultra c2-pro c2-ultra carmel cobalt-100 cortex-a320
    cortex-a34 cortex-a35 cortex-a510 cortex-a520 cortex-a520ae cortex-a53 cortex-a55 cortex-a57
    cortex-a65 cortex-a65ae cortex-a710 cortex-a715 cortex-a72 cortex-a720 cortex-a720ae cortex-a725
    cortex-a73 cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c
    cortex-r82 cortex-r82ae cortex-x1 cortex-x1c cortex-x2 cortex-x3 cortex-x4 cortex-x925 cyclone
    exynos-m3 exynos-m4 exynos-m5 falkor fujitsu-monaka gb10 grace hip12 kryo
    neoverse-512tvb neoverse-e1 neoverse-n1 neoverse-n2 neoverse-n3 neoverse-v1 neoverse-v2
    neoverse-v3 neoverse-v3ae olympus oryon-1 rigel saphira thunderx thunderx2t99 thunderx3t110
    thunderxt81 thunderxt83 thunderxt88 tsv110
"""

#: LLVM target triple -> CPUs, without `generic`, which both triples have.
CPU_NAMES: dict[str, tuple[str, ...]] = {
    "x86_64-linux-gnu": tuple(_X86_64.split()),
    "aarch64-linux-gnu": tuple(_AARCH64.split()),
}

#: CPUs with AVX-512-BF16.
WITH_BF16 = frozenset(
    (
        *(
            "cooperlake",
            "sapphirerapids",
            "emeraldrapids",
            "graniterapids",
            "graniterapids-d",
            "diamondrapids",
        ),
        *("znver4", "znver5", "znver6"),
    )
)

#: CPUs that add products of i8 in i32, in vectors of their native width: with AVX-512-VNNI, or AVX-VNNI.
WITH_VNNI = WITH_BF16 | frozenset(
    (
        *("cascadelake", "icelake-client", "icelake-server", "rocketlake", "tigerlake"),
        *("alderlake", "raptorlake", "meteorlake", "arrowlake", "arrowlake-s", "lunarlake"),
        *("gracemont", "sierraforest", "grandridge"),
    )
)

#: How the names of AMD's CPUs begin.
_AMD = "znver"

#: CPUs with AMX, and the types of the factors that it multiplies.
WITH_AMX = frozenset(("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"))
AMX_TYPES = ("bf16", "i8")

#: CPUs with AVX2 and without AVX-512, whose vectors have 32 bytes.
WITH_AVX2 = frozenset(
    (
        *("x86-64-v3", "haswell", "core-avx2", "broadwell", "skylake", "alderlake", "raptorlake"),
        *("meteorlake", "arrowlake", "arrowlake-s", "lunarlake", "gracemont", "sierraforest"),
        *("grandridge", "znver1", "znver2", "znver3"),
    )
)


def triple_of(cpu: str) -> str:
    """`znver4` -> `x86_64-linux-gnu`, `neoverse-v2` -> `aarch64-linux-gnu`; `generic`: this machine's architecture.

    Raises TargetError for an unknown CPU.
    """
    if cpu == "generic":
        return f"{platform.machine()}-linux-gnu"
    for triple, names in CPU_NAMES.items():
        if cpu in names:
            return triple
    near = nearest(cpu, (name for names in CPU_NAMES.values() for name in names))
    hint = f"did you mean {near!r}?" if near else "use an LLVM CPU name, such as znver4 or neoverse-v2"
    raise TargetError(f"unknown CPU {cpu!r}", hint=hint)


#: Levels of x86-64, the lowest first, and Linux's names of the instructions that each has in addition to the level below.
LEVELS = {
    "x86-64-v2": frozenset(("cx16", "popcnt", "ssse3", "sse4_1", "sse4_2")),
    "x86-64-v3": frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")),
    "x86-64-v4": frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}

#: CPUs of level x86-64-v4.
WITH_AVX512 = frozenset(
    (
        *("x86-64-v4", "skylake-avx512", "skx", "cascadelake", "cooperlake", "cannonlake", "icelake-client"),
        *("rocketlake", "icelake-server", "tigerlake", "sapphirerapids", "graniterapids", "graniterapids-d"),
        *("emeraldrapids", "diamondrapids", "znver4", "znver5", "znver6"),
    )
)

#: Linux's names of the instructions of AMX for each type.
_OF_AMX = {"bf16": "bf16", "i8": "int8"}
#: iree-compile rejects vectors of this many native vectors or more
#: (--iree-llvmcpu-max-allowed-number-of-native-vectors).
_MAX_NATIVE_VECTORS = 512


@dataclass(frozen=True)
class HostCpu:
    """Model, feature names and vendor (`AuthenticAMD`, or empty if unknown) of the CPU that this process runs on."""

    model: str
    features: frozenset[str]
    vendor: str = ""

    @property
    def vector_bytes(self) -> int:
        """Width of a native vector: 64 with AVX-512, 32 with AVX, 16 otherwise."""
        if "avx512f" in self.features:
            return 64
        return 32 if "avx" in self.features else 16

    @property
    def level(self) -> str:
        """The highest of `LEVELS` whose instructions the CPU has; empty for other architectures."""
        found = ""
        for level, features in LEVELS.items():
            if not features <= self.features:
                break
            found = level
        return found

    @property
    def multiplies_i8(self) -> bool:
        """Whether instructions add products of i8 in i32, in vectors of the native width."""
        wanted = {64: "avx512_vnni", 32: "avx_vnni"}.get(self.vector_bytes)
        return wanted in self.features

    @property
    def amx_types(self) -> tuple[str, ...]:
        """Types of the factors that AMX multiplies, if Linux lets this process use it."""
        types = tuple(each for each in AMX_TYPES if f"amx_{_OF_AMX[each]}" in self.features)
        return types if types and "amx_tile" in self.features and may_use_amx() else ()

    @property
    def fingerprint(self) -> str:
        features = " ".join(sorted(self.features))
        # The model determines scheduling, the features determine the instructions.
        return f"{platform.machine()} {self.model} {hashlib.sha256(features.encode()).hexdigest()[:16]}"


def parse_cpuinfo(text: str) -> HostCpu:
    """Parse the text of `/proc/cpuinfo` (x86 lists features as flags, Arm as Features)."""
    rows = {
        key.strip().lower(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    features = rows.get("flags", rows.get("features", "")).split()
    model = rows.get("model name", "") or platform.machine()
    return HostCpu(model, frozenset(features), rows.get("vendor_id", ""))


@cache
def host_cpu() -> HostCpu:
    """The CPU of this machine; without `/proc/cpuinfo` only its architecture is known."""
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return HostCpu(platform.processor() or platform.machine(), frozenset())


@dataclass(frozen=True)
class CpuTarget(Target):
    """`cpu` is `host` or an LLVM CPU name, such as `znver4`. Raises TargetError for other names.

    Kernels keep subnormal numbers, like eager torch; with `flushes`, they flush them to zero.
    """

    family: ClassVar[str] = "llvm-cpu"
    shipped_list: ClassVar[str] = "llvm-cpu"
    has_long_sums: ClassVar[bool] = True

    cpu: str = "host"
    flushes: bool = False

    def __post_init__(self) -> None:
        if self.cpu != "host":
            triple_of(self.cpu)

    @classmethod
    def parse(cls, detail: str | None) -> CpuTarget:
        return cls() if detail is None else cls(detail)

    @property
    def name(self) -> str:
        return self.family if self.cpu == "host" else f"{self.family}:{self.cpu}"

    @property
    def compile_flags(self) -> tuple[str, ...]:
        triple = () if self.cpu == "host" else (f"--iree-llvmcpu-target-triple={triple_of(self.cpu)}",)
        return (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={self.cpu}",
            *triple,
            KEEP_F64,
        )

    @property
    def device_uri(self) -> str:
        return "local-task"

    @property
    def level(self) -> str:
        """The level of the CPU's instructions, one of `LEVELS`; empty if unknown."""
        if self.cpu == "host":
            return host_cpu().level
        if self.cpu in WITH_AVX512:
            return "x86-64-v4"
        return "x86-64-v3" if self.cpu in WITH_AVX2 else ""

    @property
    def flushes_subnormals(self) -> bool:
        return self.flushes

    @property
    def limits(self) -> Limits:
        if self.cpu != "host":
            return Limits(
                vector_bytes=32 if self.cpu in WITH_AVX2 else None,
                multiplies_bf16=self.cpu in WITH_BF16,
                has_fast_bf16=self.cpu in WITH_BF16 and self.cpu.startswith(_AMD),
                multiplies_i8=self.cpu in WITH_VNNI,
                amx_types=AMX_TYPES if self.cpu in WITH_AMX else (),
            )
        cpu = host_cpu()
        width = cpu.vector_bytes
        return Limits(
            max_vector_bytes=_MAX_NATIVE_VECTORS * width,
            vector_bytes=width,
            multiplies_bf16="avx512_bf16" in cpu.features,
            has_fast_bf16="avx512_bf16" in cpu.features and cpu.vendor == "AuthenticAMD",
            multiplies_i8=cpu.multiplies_i8,
            amx_types=cpu.amx_types,
        )

    def unsupported_reason(self, operation: Operation) -> str | None:
        """See `Target.unsupported_reason`."""
        return (
            f8_beside_f64(operation, self.family)
            or wrong_f8_rounding(operation, self.family)
            or missing_f64_erf(operation, self.family)
        )

    @property
    def host(self) -> str:
        return host_cpu().fingerprint if self.cpu == "host" else ""

    @property
    def fingerprint(self) -> str:
        flags = " ".join((*self.compile_flags, *(("flushes subnormals",) if self.flushes else ())))
        return f"{flags} [{self.host}]" if self.host else flags


# -- cpu features ----------------------------------------------------------------------------------

# Features of CPUs under the names of LLVM, and whether this CPU has them.


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
    present = {_plain(each) for each in host_cpu().features}
    return tuple(
        name for name in names if name not in _IGNORED and _plain(_NAMES.get(name, name)) not in present
    )


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "")
