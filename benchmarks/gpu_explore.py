#!/usr/bin/env python3
"""Experiment: products of gpu_shapes with many configurations, in CUDA graphs, against torch."""
import argparse, ctypes, json, math, os, statistics, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))
import torch, triton
from benchmarks.gpu_shapes import LLAMA, PRODUCTS, SINGLE, explored
from dispatch_profiler.compiler import triton as ours
from dispatch_profiler.compiler._base import BuildError, Kernel
from dispatch_profiler.configurations import TritonTiles, rejection_reason
from dispatch_profiler.targets import parse_target
T = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BEGAN = time.monotonic()
def say(*x): print(f"[{time.monotonic()-BEGAN:5.0f}]", *x, flush=True)
PTXAS = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")

def build(task):
    op, c, parallel = task
    ours.PARALLEL = parallel
    try:
        k = ours.compile_kernel(c.kernel(op), 90)
    except BuildError as e:
        return e.message[:160]
    except Exception as e:
        return repr(e)[:160]
    if k.shared_bytes > 232448: return f"shared {k.shared_bytes}"
    scratch = c.launch(op).scratch
    if k.scratch_bytes > scratch[-2]: return f"scratch {k.scratch_bytes}"
    base = f"/tmp/gpupk_{os.getpid()}"
    Path(base + ".ptx").write_bytes(k.data)
    r = subprocess.run([PTXAS, "-v", "--gpu-name", "sm_90a", base + ".ptx", "-o", base + ".cubin"], capture_output=True, text=True)
    if r.returncode: return "ptxas: " + r.stderr[:200]
    return (Path(base + ".cubin").read_bytes(), k.shared_bytes)

class Launcher:
    cu = None
    def __init__(self, op, c, data, shared, lhs, rhs):
        if Launcher.cu is None: Launcher.cu = ctypes.CDLL("libcuda.so.1")
        self.l = c.launch(op); self.shared = shared
        self.m, self.f = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok(self.cu.cuModuleLoadData(ctypes.byref(self.m), data))
        self.ok(self.cu.cuModuleGetFunction(ctypes.byref(self.f), self.m, self.l.entry.encode()))
        self.ok(self.cu.cuFuncSetAttribute(self.f, 8, shared))
        self.result = torch.full(self.l.shape, math.nan, dtype=lhs.dtype, device="cuda")
        spare = [torch.full((x,), 255, dtype=torch.uint8, device="cuda") for x in self.l.scratch]
        self.t = (lhs, rhs, self.result, *spare)
        self.p = [ctypes.c_void_p(x.data_ptr()) for x in self.t]
        self.a = (ctypes.c_void_p * len(self.p))(*map(ctypes.addressof, self.p))
    def __call__(self):
        s = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.ok(self.cu.cuLaunchKernel(self.f, *self.l.workgroups, *self.l.workgroup_size, self.shared, s, self.a, None))
    def ok(self, status):
        if status: raise RuntimeError(f"CUDA error {status}")

def us(call, guess=20.0, replays=7):
    n = max(3, min(20, int(3000 / guess)))
    s = torch.cuda.Stream()
    with torch.cuda.stream(s): call()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(n): call()
    g.replay()
    b, e = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(replays):
        b.record(); g.replay(); e.record(); e.synchronize()
        found.append(b.elapsed_time(e) * 1e3 / n)
    return statistics.median(found)

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--json", type=Path); ap.add_argument("--seconds", type=float, default=262)
    ap.add_argument("--workers", type=int, default=16); ap.add_argument("--only", default=""); ap.add_argument("--points", type=Path)
    o = ap.parse_args()
    limits = parse_target("cuda:h200").limits
    points = json.loads(o.points.read_text()) if o.points else None
    tasks = {}
    for op in (*SINGLE, *PRODUCTS, *LLAMA):
        if o.only and o.only not in op.name: continue
        cs = list(explored(op))
        if op.element_type.name != "f32":
            if "4096x4096x4096" in op.name or "28672x4096" in op.name: cs = cs[:30]
            cs += [TritonTiles(tile=(128,256,64),warps=8,stages=3), TritonTiles(tile=(64,64,64),warps=4,stages=4)]
        cs = [c for c in dict.fromkeys(cs) if rejection_reason(c, op, limits) is None]
        tasks[op] = [(op, c, True) for c in cs] + [(op, c, False) for c in cs if c.descriptors and not c.specialized][:3]
    say("kernels", sum(map(len, tasks.values())))
    out = {}
    with ProcessPoolExecutor(o.workers) as pool:
        futures = {op: [pool.submit(build, t) for t in ts] for op, ts in tasks.items()}
        say(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
        for op, ts in tasks.items():
            g = op.product; dt = T[op.element_type.name]
            if time.monotonic() - BEGAN > o.seconds: say("out of time before", op.name); break
            shape = (lambda b, r, c: (b, r, c) if g.is_batched else (r, c))
            lhs = (torch.randn(shape(g.batch, g.m, g.k), device="cuda") * g.k ** -0.25).to(dt)
            rhs = (torch.randn(shape(g.batch, *((g.n, g.k) if g.rhs_layout == "n" else (g.k, g.n))), device="cuda") * g.k ** -0.25).to(dt)
            right = rhs.transpose(-1, -2) if g.rhs_layout == "n" else rhs
            expected = lhs.float() @ right.float()
            norm = expected.norm()
            theirs = lambda: torch.matmul(lhs, right)
            theirs()
            before = us(theirs, 2.0 * g.batch * g.m * g.n * g.k / 5e8 + 5)
            found, bad = {}, {}
            for task, future in zip(ts, futures[op]):
                if time.monotonic() - BEGAN > o.seconds: break
                name = task[1].name.removeprefix("triton_") + ("" if task[2] or not task[1].descriptors else "!serial")
                try: k = future.result()
                except Exception as e: k = repr(e)
                if isinstance(k, str): bad.setdefault(k[:90], []).append(name); continue
                try:
                    l = Launcher(op, task[1], *k, lhs, rhs)
                    l(); torch.cuda.synchronize()
                    first = l.result.clone()
                    error = ((first.float() - expected).norm() / norm).item()
                    if not error < {"bf16": 5e-3, "f16": 1e-3, "f32": 1e-5}[op.element_type.name]:
                        bad.setdefault("WRONG", []).append(f"{name} {error:.2g}"); continue
                    found[name] = us(l, before * 1.3)
                    if not torch.equal(first, l.result): bad.setdefault("UNREPEATABLE", []).append(name)
                    Launcher.cu.cuModuleUnload(l.m)
                except RuntimeError as e:
                    say("BROKEN", op.name, name, e); bad.setdefault(str(e)[:80], []).append(name)
                    if o.json: o.json.write_text(json.dumps(out))
                    torch.cuda.synchronize()
            t = statistics.median((before, us(theirs, before)))
            best = sorted(found.items(), key=lambda x: x[1])
            say(f"{t/best[0][1] if best else 0:.3f} {op.name} torch {t:.2f} us:", ", ".join(f"{n} {v:.2f}" for n, v in best[:6]), f"({len(found)} of {len(ts)})")
            ser = [(n, v, found.get(n.removesuffix("!serial"))) for n, v in found.items() if n.endswith("!serial")]
            if ser: say("   serial descriptors against parallel:", ", ".join(f"{n[:-7]} {v:.2f} {p or 0:.2f}" for n, v, p in ser))
            for reason, names in bad.items(): say(f"   {len(names)} {reason}: {names[:4]}")
            out[op.name] = {"torch": t, "times": found, "bad": bad}
            if o.json: o.json.write_text(json.dumps(out, indent=0))
            del lhs, rhs, right, expected
        pool.shutdown(cancel_futures=True)
    ratios = [v["torch"] / min(v["times"].values()) for k, v in out.items() if v["times"] and "f32" not in k]
    say("geometric mean", math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))), "worst", min(ratios, default=0))
if __name__ == "__main__":
    main()
