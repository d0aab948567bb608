"""`settings_state` changes whenever `launch_settings` may."""

from __future__ import annotations

import pytest

from dispatch_profiler.boo.environment import launch_settings, settings_state
from dispatch_profiler.targets.cpu import LEVELS, HostCpu


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BOO_CACHE_ON", "0"),
        ("BOO_CACHE_DIR", "kernels"),
        ("BOO_TUNING_SPEC_PATH", ""),
        ("BOO_FLUSH_SUBNORMALS", "1"),
        ("BOO_CPU_LEVEL", "x86-64-v2"),
        ("XDG_CACHE_HOME", "/elsewhere"),
        ("HOME", "/elsewhere"),
    ],
)
def test_a_change_of_any_variable_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(
        "dispatch_profiler.boo.environment.host_cpu", lambda: HostCpu("a CPU", LEVELS["x86-64-v2"])
    )
    before, settings = settings_state(), launch_settings()

    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        assert settings_state() != before
        assert launch_settings() != settings

    assert settings_state() == before
