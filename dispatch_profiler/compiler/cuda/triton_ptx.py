"""Changes to the PTX that Triton writes."""

from __future__ import annotations

import re

#: The pointer that is not passed, but replaced by counters of the module, which the driver sets to zero.
COUNTERS = "arrivals"


def with_counters(ptx: str, kernel: str, parameter: int, count: int) -> str:
    """`ptx` with an array of `count` counters in place of the kernel's parameter number `parameter`.

    Raises ValueError if the kernel does not have this parameter, or does not load it once.
    """
    name = f"{kernel}_param_{parameter}"
    declared = re.compile(rf"^\t\.param [^\n]*\b{name},?\n", re.MULTILINE)
    loaded = re.compile(rf"ld\.param\.b64 \t(%rd\d+), \[{name}\];")
    if len(declared.findall(ptx)) != 1 or not loaded.search(ptx):
        raise ValueError(f"the PTX of {kernel} does not load {name}")
    ptx = loaded.sub(rf"mov.b64 \t\1, {COUNTERS};", declared.sub("", ptx))
    array = f".global .align 4 .b32 {COUNTERS}[{count}];"
    return ptx.replace(".address_size 64\n", f".address_size 64\n\n{array}\n", 1)
