"""A compiler that knows some CPUs, and aborts for some of them: importable, because workers import it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from dispatch_profiler.compiler import BuildError
from dispatch_profiler.compiler.backends.host_cpu import CPU_FLAG, HOST

#: What names imply, and what the machine has: a Xeon whose hypervisor masks bf16, f16 and AMX.
IMPLIED = {
    "emeraldrapids": "+avx2,+avx512bf16,+avx512f,+amx-tile,+sgx",
    "icelake-server": "+avx2,+avx512f,+gfni,+sgx",
    "cascadelake": "+avx2,+avx512f",
    "znver4": "+avx2,+avx512bf16,+avx512f,+sse4a",
    "x86-64-v4": "+avx2,+avx512f",
    "x86-64-v3": "+avx2",
    "x86-64-v2": "+sse3",
}
MASKED = "+sse3,+avx2,+avx512f,+gfni,-avx512bf16,-amx-tile,-sgx"


@dataclass(frozen=True)
class Module:
    source: str
    cpu: str
    features: str

    def text(self) -> str:
        return f'cpu = "{self.cpu}", cpu_features = "{self.features}"'


@dataclass(frozen=True)
class Masked:
    """`aborts` for bf16 with these CPUs, where `with_features` is part of their features; `lacks` memory for them."""

    aborts: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    revision: str = "1"

    @property
    def phases(self) -> Masked:
        return self

    def without_verifier(self) -> Masked:
        return self

    def parse(self, source: str, flags: tuple[str, ...]) -> Module:
        values = dict(each.split("=", 1) for each in flags if "=" in each)
        if HOST in flags:
            return Module(source, "emeraldrapids", f"{IMPLIED['emeraldrapids']},{MASKED}")
        cpu, more = values[CPU_FLAG], values.get(f"{CPU_FLAG}-features", "")
        if cpu not in IMPLIED:
            raise BuildError(f"unknown {cpu}")
        return Module(source, cpu, ",".join(filter(None, (IMPLIED[cpu], more))))

    def advance(
        self, module: Module, flags: tuple[str, ...], start: str | None = None, *, stop: str
    ) -> Module:
        if stop == "hal" and "bf16" in module.source and module.cpu in self.aborts:
            print("LLVM ERROR: no bf16 here\n", file=sys.stderr, flush=True)
            os.abort()
        if stop == "hal" and module.cpu in self.lacks:
            raise MemoryError
        return module
