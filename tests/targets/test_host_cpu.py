"""What is known about the CPU of this machine, and what follows for code that is made for it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import CpuTiles, Limits
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import CpuTarget, HostCpu, cpu, host_cpu, parse_cpuinfo
from dispatch_profiler.targets.cpu_names import CPU_NAMES, WITH_BF16

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)

X86 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9654 96-Core Processor
bugs\t\t: sysret_ss_attrs spectre_v1
flags\t\t: fpu sse sse2 avx avx2 avx512f
vmx flags\t: vnmi
power management: ts ttp

processor\t: 1
model name\t: AMD EPYC 9654 96-Core Processor
flags\t\t: fpu sse sse2 avx avx2 avx512f
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU part\t: 0xd40

processor\t: 1
Features\t: fp asimd evtstrm aes sve
"""


def cpu_with(*features):
    """A CPU of no particular model."""
    return HostCpu("a CPU", frozenset(features))


def test_an_x86_is_read():
    """Its model and its flags; `vmx flags` are others."""
    expected = HostCpu(
        "AMD EPYC 9654 96-Core Processor", frozenset({"fpu", "sse", "sse2", "avx", "avx2", "avx512f"})
    )
    assert expected == parse_cpuinfo(X86)


def test_an_arm_is_read():
    """It has Features and, in most kernels, no model: the architecture stands for it."""
    expected = HostCpu(platform.machine(), frozenset({"fp", "asimd", "evtstrm", "aes", "sve"}))
    assert expected == parse_cpuinfo(ARM)


@pytest.mark.parametrize("text", ["", "\n", "no colon here", "model name:\nflags:\n"])
def test_a_text_that_tells_nothing_is_a_cpu_without_features(text):
    """Nothing is made up."""
    assert HostCpu(platform.machine(), frozenset()) == parse_cpuinfo(text)


@pytest.mark.parametrize(
    ("features", "width"),
    [
        (("sse2", "avx", "avx2", "avx512f"), 64),
        (("sse2", "avx"), 32),
        (("sse2",), 16),
        (("fp", "asimd"), 16),
        ((), 16),
    ],
)
def test_the_width_of_a_vector_follows_from_the_features(features, width):
    """AVX-512 has 64 bytes, AVX 32, SSE and Neon 16."""
    assert width == cpu_with(*features).vector_bytes


FEATURES = st.frozensets(st.sampled_from(["sse2", "avx", "avx2", "avx512f", "fma", "f16c", "vnni"]))


@PROPERTY
@given(FEATURES, FEATURES)
def test_cpus_share_a_fingerprint_only_if_they_have_the_same_features(one, other):
    """In whatever order the features were listed."""
    assert (one == other) == (cpu_with(*one).fingerprint == cpu_with(*other).fingerprint)


def test_a_fingerprint_tells_the_architecture(monkeypatch):
    """Two machines without known features are still not the same."""
    here = cpu_with().fingerprint
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    assert cpu_with().fingerprint.startswith("mips ")
    assert here != cpu_with().fingerprint


def test_the_host_is_read_from_cpuinfo(monkeypatch):
    """Where there is one."""
    monkeypatch.setattr(Path, "read_text", lambda path, **options: {"/proc/cpuinfo": X86}[str(path)])
    assert parse_cpuinfo(X86) == host_cpu.__wrapped__()


def test_without_cpuinfo_only_the_architecture_is_known(monkeypatch):
    """As on a Mac."""

    def missing(path, **options):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert HostCpu("arm64", frozenset()) == host_cpu.__wrapped__()


def test_the_host_is_read_once():
    """It does not change while a program runs."""
    assert host_cpu() is host_cpu()


@pytest.mark.parametrize(("features", "limit"), [(("avx512f",), 32768), (("avx",), 16384), (("sse2",), 8192)])
def test_the_host_limits_vectors_to_512_registers(monkeypatch, features, limit):
    """The compiler refuses 512 native vectors or more; of a named CPU that limit is not known here."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu_with(*features))
    assert Limits(max_vector_bytes=limit, vector_bytes=limit // 512) == CpuTarget().limits
    assert Limits(vector_bytes=32) == CpuTarget("znver3").limits
    assert Limits() == CpuTarget("icelake-server").limits


@pytest.mark.parametrize("features", [("avx512f", "avx512_bf16"), ("avx512f", "avx512_vnni")])
def test_whether_a_cpu_multiplies_bf16_is_known_of_the_host_and_of_names(monkeypatch, features):
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu_with(*features))
    assert CpuTarget().limits.multiplies_bf16 == ("avx512_bf16" in features)
    assert CpuTarget("znver4").limits.multiplies_bf16
    assert CpuTarget("sapphirerapids").limits.multiplies_bf16
    for name in ("cascadelake", "x86-64-v4", "znver3", "neoverse-v2", "generic"):
        assert not CpuTarget(name).limits.multiplies_bf16


def test_names_of_cpus_with_bf16_are_names_of_cpus():
    assert frozenset(CPU_NAMES["x86_64-linux-gnu"]) >= WITH_BF16


def test_the_limit_makes_a_tile_invalid(monkeypatch):
    """64 x 128 of f32 is 32768 B: too much even with AVX-512, whereas 64 x 64 is not."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu_with("avx512f"))
    limits, operation = CpuTarget().limits, Matmul(128, 128, 128)
    assert "below 32768 B" in CpuTiles((64, 128), (64, 128, 1)).invalid_reason(operation, limits)
    assert CpuTiles((64, 128), (64, 64, 1)).invalid_reason(operation, limits) is None


def test_code_for_the_host_is_known_by_the_features_of_the_host(monkeypatch):
    """The flag says `host` everywhere; the fingerprint tells two hosts apart."""
    found = []
    for features in (("avx",), ("avx", "fma")):
        monkeypatch.setattr(cpu, "host_cpu", lambda features=features: cpu_with(*features))
        found.append(CpuTarget().fingerprint)
    assert len(set(found)) == 2
    assert all(each.startswith(" ".join(CpuTarget().compile_flags)) for each in found)


def test_code_for_a_named_cpu_is_the_same_on_every_host(monkeypatch):
    """Its flags say it all."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: pytest.fail("the host does not matter"))
    assert " ".join(CpuTarget("znver4").compile_flags) == CpuTarget("znver4").fingerprint
