"""Changes to the PTX that Triton writes: counters of their own for kernels, and descriptors made at the same time."""

from __future__ import annotations

import re

#: The parameter that is not passed, but replaced by memory of the module, which the driver sets to zero.
COUNTERS = "arrivals"
_KNOWN = re.compile(r"\t(mov|cvt|add|shl|setp|ld\.param|bar\.warp\.sync|bar\.sync|@%p\d+ bra)\b|\$L__BB\d+_\d+:|//|$")
_STATEMENT = re.compile(r"^\t// begin inline asm\n(.*?)^\t// end inline asm\n", re.MULTILINE | re.DOTALL)


def with_counters(ptx: str, kernel: str, parameter: int, count: int) -> str:
    """`ptx` with an array of `count` counters in place of the kernel's parameter number `parameter`."""
    name = f"{kernel}_param_{parameter}"
    declared = re.compile(rf"^\t\.param [^\n]*\b{name},?\n", re.MULTILINE)
    loaded = re.compile(rf"ld\.param\.b64 \t(%rd\d+), \[{name}\];")
    if not declared.search(ptx) or not loaded.search(ptx):
        raise ValueError(f"the PTX of {kernel} does not load {name}")
    ptx = loaded.sub(rf"mov.b64 \t\1, {COUNTERS};", declared.sub("", ptx))
    return ptx.replace(
        ".address_size 64\n", f".address_size 64\n\n.global .align 4 .b32 {COUNTERS}[{count}];\n", 1
    )


def with_parallel_descriptors(ptx: str) -> str:
    """`ptx` whose warps make one descriptor each, at the same time; unchanged if Triton's code has another form.

    Triton's code makes one descriptor after the other in the first warp, and waits for each to reach memory.
    """
    begin = ptx.find("st.shared::cta.b32")
    last = ptx.rfind("fence.proxy.tensormap::generic.acquire.gpu")
    count = ptx.count("tensormap.cp_fenceproxy")
    threads = re.search(r"\.reqntid (\d+)", ptx)
    if count < 2 or begin < 0 or threads is None or int(threads[1]) < 32 * count:
        return ptx
    begin = ptx.rfind("\t// begin inline asm\n", 0, begin)
    end = ptx.find("\tbar.sync \t0;\n", last)
    if not all(map(_KNOWN.match, _STATEMENT.sub("", ptx[begin:end]).splitlines())):
        return ptx
    return ptx[:begin] + _parallel(ptx[begin:end], count) + ptx[end:]


def _parallel(region: str, count: int) -> str:
    """The statements of `region`, those of each descriptor for a warp of its own."""
    others = _STATEMENT.sub("", region)
    kept = [
        line
        for line in others.splitlines()
        if line.strip()
        and not re.match(r"\t(bar\.warp\.sync|bar\.sync|@%p\d+ bra)|\$L__|//", line)
        and not line.startswith("//")
    ]
    parts: list[list[str]] = [[]]
    for found in _STATEMENT.finditer(region):
        statement = found[1]
        if "cp.async.bulk" in statement and "fence.proxy" in statement:
            parts[-1].append(statement.splitlines()[0] + "\n")
            parts.append([])
        else:
            parts[-1].append(statement)
    lines = "".join(f"{line}\n" for line in kept)
    return lines + "".join(_one(number, part) for number, part in enumerate(parts[:count]))


def _one(number: int, statements: list[str]) -> str:
    """The statements of a descriptor, in warp `number` and its own 128 bytes of shared memory."""
    shared = "%dp_shared"
    fills = [x for x in statements if "st.shared::cta" in x]
    sets = [x for x in statements if "tensormap.replace" in x]
    copies = [x for x in statements if "cp_fenceproxy" in x]
    fences = [x for x in statements if "fence.proxy.tensormap" in x]
    assert len(fills) == len(copies) == len(fences) == 1
    value = re.search(r", (%r\d+);", fills[0])
    target = re.search(r"\.aligned \[ (%rd\d+) \+ 0 \]", copies[0])
    assert value and target
    replaced = "".join(re.sub(r"\[ %rd\d+ \+ 0 \]", "[dp_at]", x) for x in sets)
    return f"""\t{{
	.reg .pred dp_warp, dp_lane;
	.reg .b32 dp_tid, dp_number, dp_index, dp_base, dp_word;
	.reg .b64 dp_at;
	mov.u32 dp_tid, %tid.x;
	shr.u32 dp_number, dp_tid, 5;
	and.b32 dp_index, dp_tid, 31;
	setp.ne.u32 dp_warp, dp_number, {number};
	mov.b32 dp_base, global_smem;
	add.u32 dp_base, dp_base, {128 * number};
	cvt.u64.u32 dp_at, dp_base;
	@dp_warp bra dp_done{number};
	shl.b32 dp_word, dp_index, 2;
	add.u32 dp_word, dp_word, dp_base;
	st.shared::cta.b32 [dp_word], 0;
	bar.warp.sync -1;
	setp.ne.u32 dp_lane, dp_index, 0;
	@dp_lane bra dp_set{number};
{replaced}dp_set{number}:
	bar.warp.sync -1;
	tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [{target[1]}], [dp_at], 0x80;
	fence.proxy.tensormap::generic.acquire.gpu [{target[1]}], 0x80;
dp_done{number}:
	}}
"""
