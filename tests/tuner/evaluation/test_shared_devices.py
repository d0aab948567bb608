"""Which devices share a search when no option names any."""

from __future__ import annotations

import pytest

from dispatch_profiler.errors import TargetError
from dispatch_profiler.tuner.evaluation import devices
from dispatch_profiler.tuner.evaluation.devices import SharedDevices, alike, usual_devices


def test_a_driver_stands_for_all_of_its_devices(monkeypatch):
    monkeypatch.setattr(devices, "all_devices", lambda uri: tuple(f"{uri}://{each}" for each in range(3)))
    assert usual_devices("hip") == SharedDevices(("hip://0", "hip://1", "hip://2"))


@pytest.mark.parametrize("device", ["hip://1", "cuda://GPU-3f", "null", "local-task", "local-sync"])
def test_a_device_that_is_named_and_a_cpu_are_used_alone(device):
    assert usual_devices(device) == SharedDevices((device,))


def test_a_driver_without_devices_is_left_to_the_search_which_reports_it(monkeypatch):
    def none(uri):
        raise TargetError(f"no {uri} device on this machine")

    monkeypatch.setattr(devices, "all_devices", none)
    assert usual_devices("hip") == SharedDevices(("hip",))


def test_devices_unlike_the_first_are_left_out(monkeypatch):
    class Machine:
        def __init__(self, gpu: str) -> None:
            self.gpu = gpu

    monkeypatch.setattr(devices, "this_machine", lambda uri: Machine("old" if uri.endswith("1") else "new"))
    found = alike(("cuda://0", "cuda://1", "cuda://2"))
    assert found == SharedDevices(("cuda://0", "cuda://2"), ("cuda://1",))
