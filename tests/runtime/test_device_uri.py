"""Device URIs are parsed once, and asked instead of compared as text."""

from __future__ import annotations

import pytest

from dispatch_profiler.errors import TargetError
from dispatch_profiler.runtime import DeviceUri, device_uri


@pytest.mark.parametrize(
    ("text", "driver", "path", "ordinal"),
    [
        ("local-task", "local-task", "", 0),
        ("cuda", "cuda", "", 0),
        ("cuda://3", "cuda", "3", 3),
        ("cuda://GPU-1f", "cuda", "GPU-1f", None),
        ("null://1", "null", "1", 1),
        (" hip://0 ", "hip", "0", 0),
        ("cuda://²", "cuda", "²", None),
    ],
)
def test_a_uri_has_a_driver_and_a_path(text: str, driver: str, path: str, ordinal: int | None):
    uri = DeviceUri.parse(text)
    assert (uri.driver, uri.path, uri.ordinal) == (driver, path, ordinal)
    assert DeviceUri.parse(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "local", "null", "gpu", "cuda", "workers"),
    [
        ("local-task", True, False, False, False, True),
        ("local-sync", True, False, False, False, False),
        ("null://1", False, True, False, False, False),
        ("cuda://1", False, False, True, True, False),
        ("hip", False, False, True, False, False),
        ("vulkan", False, False, True, False, False),
    ],
)
def test_what_a_device_is(text: str, local: bool, null: bool, gpu: bool, cuda: bool, workers: bool):
    uri = DeviceUri.parse(text)
    assert (uri.is_local, uri.is_null, uri.is_gpu, uri.is_cuda, uri.has_workers) == (
        local, null, gpu, cuda, workers,
    )  # fmt: skip


def test_both_devices_of_the_cpu_run_the_same_code():
    assert {DeviceUri.parse(text).family for text in ("local-task", "local-sync")} == {"local"}
    assert DeviceUri.parse("cuda://1").family == "cuda"


@pytest.mark.parametrize(
    ("text", "usual", "uri"),
    [
        ("1", "cuda", "cuda://1"),
        ("0", "cuda://3", "cuda://0"),
        (" 2 ", "hip", "hip://2"),
        ("0", "local-task", "local-task"),
        ("1", "null", "null://1"),
        ("hip://1", "cuda", "hip://1"),
        ("local-sync", "local-task", "local-sync"),
    ],
)
def test_a_number_counts_the_devices_of_the_targets_driver(text: str, usual: str, uri: str):
    assert device_uri(text, usual) == uri


def test_a_cpu_is_one_device():
    with pytest.raises(TargetError, match=r"^local-task has no device 1$"):
        device_uri("1", "local-task")
