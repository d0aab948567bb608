"""Which device commands run on."""

from __future__ import annotations

import pytest

from dispatch_profiler.boo.driver import torch_functions
from dispatch_profiler.boo.driver.torch_functions import choose_device, uri_of
from dispatch_profiler.errors import MissingDependency, UsageError

torch = pytest.importorskip("torch")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    ("device", "gpu", "chosen", "uri"),
    [
        (None, None, "cuda:0", "cuda://0"),
        (None, 1, "cuda:1", "cuda://1"),
        ("cuda", None, "cuda:0", "cuda://0"),
        ("cuda", 1, "cuda:1", "cuda://1"),
        ("cuda:1", None, "cuda:1", "cuda://1"),
        ("cuda://1", 1, "cuda:1", "cuda://1"),
        ("cpu", None, "cpu", "local-task"),
    ],
)
def test_the_device_is_the_one_that_is_named_or_the_first_gpu(device, gpu, chosen, uri, two_gpus):
    assert choose_device(device, gpu) == chosen
    assert str(uri_of(chosen)) == uri


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == "cpu"

    monkeypatch.setattr(torch_functions, "has_torch", lambda: False)
    assert choose_device(None) == "cpu"


@pytest.mark.parametrize("device", ["cuda:2", "cuda:00000", "rocm", "local-sync", "cuda:-1", "CPU", ""])
def test_another_device_is_rejected(device: str, two_gpus):
    with pytest.raises(UsageError, match=r"cuda:2 is not available: torch .* finds 2 GPUs|is not supported"):
        choose_device(device)


def test_a_gpu_needs_torch(monkeypatch):
    monkeypatch.setattr(torch_functions, "load_torch", missing)

    with pytest.raises(MissingDependency, match="torch is not installed"):
        choose_device("cuda")


def missing() -> object:
    raise MissingDependency("torch is not installed")
