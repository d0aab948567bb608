"""The compiler's facts about the GPUs that it supports, and the file that holds them.

`targets` and `configurations` do not load the compiler, so its facts are stored in
`targets/gpu_facts.json`, which a test compares with the compiler. For another compiler, update it:

    python -m dispatch_profiler.compiler.target_info
"""

from __future__ import annotations

import json
import re
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import iree_gpu

from dispatch_profiler.compiler._base import SMALLEST_MODULE
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.ir_module import operations_in
from dispatch_profiler.configurations import INTRINSICS
from dispatch_profiler.errors import ToolError
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.targets import FAMILIES, Target
from dispatch_profiler.targets.by_architecture import FACTS, ByArchitecture


def gpu_facts(target: Target) -> dict[str, Any]:
    """The compiler's facts about one target, as stored in the file.

    Raises ToolError if the target is not a GPU, BuildError if the compiler does not support it.
    """
    phases, flags = InProcess(), target.compile_flags
    module = phases.advance(phases.parse(SMALLEST_MODULE, flags), flags, stop="executable-sources")
    variant = next(op for op in operations_in(module.operation) if op.name == "hal.executable.variant")
    text = str(variant.attributes["target"])
    if "#iree_gpu.target" not in text:
        raise ToolError(f"the compiler does not describe {target.name}: it is not a GPU")
    with module.operation.context:
        info = iree_gpu.TargetInfo.get_gpu_target_info(ir.Attribute.parse(text))
    vector_registers = re.search(r"vgpr_space_bits = (\d+)", text)
    listed = re.search(r"\bmma = \[([^\]]*)\]", text)
    return {
        "arch": info.arch,
        "threads": info.max_thread_count_per_workgroup,
        "shared_bytes": info.max_workgroup_memory_bytes,
        "subgroup_sizes": list(info.subgroup_size_choices),
        # 32-bit registers per thread; the compiler does not report the number for NVIDIA GPUs.
        "registers": int(vector_registers[1]) // 32 if vector_registers else 0,
        "intrinsics": [n for n in re.findall(r"<(\w+)>", listed[1] if listed else "") if n in INTRINSICS],
    }


def every_gpu() -> list[Target]:
    """All targets with a known architecture, and the targets of families without architectures."""
    families = [f for f in FAMILIES.values() if issubclass(f, ByArchitecture) and f.describes_gpus]
    return [
        family(arch)
        for family in families
        for arch in (*family.architectures, *([] if family.needs_architecture else [""]))
    ]


def write_facts() -> None:
    """Query the compiler about every GPU and write `targets/gpu_facts.json`, one line each."""
    rows = (f"{json.dumps(target.name)}: {json.dumps(gpu_facts(target))}" for target in every_gpu())
    write_atomic(FACTS, "{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    write_facts()
