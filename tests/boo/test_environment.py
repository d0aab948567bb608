"""The documented variables, read when they are used, with errors that name them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_profiler.boo.environment import (
    LOGGER,
    LaunchSettings,
    autotunes,
    configure_logging,
    launch_settings,
    releases_torch_threads,
    settings_state,
    uses_backward_kernels,
)
from dispatch_profiler.boo.kernels.targets import target_of
from dispatch_profiler.command import user_cache
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets.cpu import LEVELS, HostCpu

_WITH_AVX2 = HostCpu("Haswell", LEVELS["x86-64-v2"] | LEVELS["x86-64-v3"])


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CACHE_ON",
        "CACHE_DIR",
        "TUNING_SPEC_PATH",
        "USE_BACKWARD_KERNELS",
        "FLUSH_SUBNORMALS",
        "CPU_LEVEL",
    ):
        monkeypatch.delenv(f"BOO_{name}", raising=False)
    for name in ("LOG_LEVEL", "DEBUG"):
        monkeypatch.delenv(f"TURBINE_{name}", raising=False)


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger(LOGGER)
    level, handlers = found.level, list(found.handlers)
    yield found
    found.setLevel(level)
    found.handlers = handlers


def test_without_variables_kernels_are_cached_and_tuned():
    assert launch_settings() == LaunchSettings(user_cache(), None)
    assert not uses_backward_kernels()


def test_kernels_are_compiled_for_a_level_of_this_cpu(monkeypatch: pytest.MonkeyPatch):
    """Others would end the process with an illegal instruction."""
    monkeypatch.setattr("dispatch_profiler.boo.environment.host_cpu", lambda: _WITH_AVX2)
    monkeypatch.setenv("BOO_CPU_LEVEL", "x86-64-v3")
    assert target_of(DeviceUri("local-task")).name == "llvm-cpu:x86-64-v3"
    for level in ("x86-64-v4", "v3"):
        monkeypatch.setenv("BOO_CPU_LEVEL", level)
        with pytest.raises(UsageError, match=f"BOO_CPU_LEVEL must be a level .* but is '{level}'") as caught:
            launch_settings()
        assert caught.value.hint == "available: x86-64-v2, x86-64-v3"


def test_a_cpu_without_known_levels_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "dispatch_profiler.boo.environment.host_cpu", lambda: HostCpu("Neoverse", frozenset())
    )
    monkeypatch.setenv("BOO_CPU_LEVEL", "x86-64-v2")
    with pytest.raises(UsageError) as caught:
        launch_settings()
    assert caught.value.hint == "available: none"


def test_a_variable_counts_from_when_it_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "")
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")
    assert launch_settings() == LaunchSettings(tmp_path, "")
    assert uses_backward_kernels()

    monkeypatch.setenv("BOO_CACHE_ON", "0")
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "mine")
    assert launch_settings() == LaunchSettings(None, "mine")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "quick"),
        ("", "quick"),
        ("quick", "quick"),
        ("QUICK", "quick"),
        ("1", True),
        ("0", False),
        ("off", False),
    ],
)
def test_what_compiled_models_measure(
    value: str | None, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOO_AUTOTUNE", raising=False)
    if value is not None:
        monkeypatch.setenv("BOO_AUTOTUNE", value)
    assert autotunes() is expected or autotunes() == expected == "quick"


def test_an_unknown_measurement_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_AUTOTUNE", "fast")
    with pytest.raises(UsageError, match="BOO_AUTOTUNE must be quick, 0 or 1, but is 'fast'"):
        autotunes()


def test_flushing_subnormal_numbers_is_a_setting_of_launches(monkeypatch: pytest.MonkeyPatch):
    kept, state = launch_settings(), settings_state()
    assert not kept.flushes_subnormals and not target_of(DeviceUri("local-sync")).flushes_subnormals
    monkeypatch.setenv("BOO_FLUSH_SUBNORMALS", "1")
    assert launch_settings().flushes_subnormals and target_of(DeviceUri("local-task")).flushes_subnormals
    assert settings_state() != state
    monkeypatch.setenv("BOO_FLUSH_SUBNORMALS", "always")
    with pytest.raises(UsageError, match="BOO_FLUSH_SUBNORMALS must be 0 or 1, but is 'always'"):
        launch_settings()


def test_a_home_in_the_folder_is_expanded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOO_CACHE_DIR", "~/kernels")

    assert launch_settings().cache_folder == Path.home() / "kernels"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BOO_CACHE_ON", "yes!", "BOO_CACHE_ON must be 0 or 1, but is 'yes!'"),
        ("BOO_USE_BACKWARD_KERNELS", "2", "BOO_USE_BACKWARD_KERNELS must be 0 or 1, but is '2'"),
        ("BOO_RELEASE_TORCH_THREADS", "2", "BOO_RELEASE_TORCH_THREADS must be 0 or 1, but is '2'"),
        ("TURBINE_LOG_LEVEL", "LOUD", "TURBINE_LOG_LEVEL: unknown log level 'LOUD'"),
        ("TURBINE_DEBUG", "log_level=LOUD", "TURBINE_DEBUG: unknown log level 'LOUD'"),
        ("TURBINE_DEBUG", "loglevel=DEBUG", "TURBINE_DEBUG: unknown item 'loglevel'"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
):
    monkeypatch.setenv(name, value)

    with pytest.raises(UsageError) as caught:
        launch_settings()
        uses_backward_kernels()
        releases_torch_threads()
        configure_logging()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [("TURBINE_LOG_LEVEL", "debug"), ("TURBINE_DEBUG", "log_level=DEBUG"), ("TURBINE_DEBUG", "asserts,log_level=DEBUG")],
)  # fmt: skip
def test_the_level_of_the_logger_is_set(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger, name: str, value: str
):
    monkeypatch.setenv(name, value)
    configure_logging()

    assert logger.level == logging.DEBUG


def test_without_a_level_the_logger_stays_as_the_program_has_it(logger: logging.Logger):
    logger.setLevel(logging.ERROR)
    before = list(logger.handlers)
    configure_logging()

    assert (logger.level, logger.handlers) == (logging.ERROR, before)
