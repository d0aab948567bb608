"""What it costs that torch's threads and those of kernels share the cores: rows of benchmarks/models.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks._model_timing import Scale, in_turns
from benchmarks._table import Row, at_most


def pools_rows(scale: Scale) -> Iterator[Row]:
    """Our kernels and torch's operators in turns, whose thread pools share the cores, against each of them alone.

    The policy is: both keep the threads that they have by default, and no setting of the process is changed. The first
    row says what that costs, the others what a kernel on the calling thread alone would.
    """
    import torch

    from dispatch_profiler.boo import Launchable

    signature = pooled_signature()
    x, w = signature.get_sample_args(seed=0)
    images = torch.randn(1, 128, 28, 28).to(memory_format=torch.channels_last)
    filters = torch.randn(128, 128, 3, 3).to(memory_format=torch.channels_last)

    def torch_call() -> object:
        return torch.nn.functional.conv2d(images, filters, padding=1)

    launches = {
        driver: Launchable(signature.launch, provider_of(signature), driver_choices=OneDriver(driver=driver))
        for driver in ("local-task", "local-sync")
    }
    calls: dict[str, Callable[[], object]] = {"torch": torch_call}
    for driver, launch in launches.items():
        calls[driver] = lambda launch=launch: launch(x, w)
        calls[f"{driver} and torch"] = lambda launch=launch: (launch(x, w), torch_call())
    with torch.inference_mode():
        taken = in_turns(calls, scale.rounds, scale.seconds)
    ms = {name: statistics.median(each) for name, each in taken.items()}
    print("a convolution of 28x28x128:", ", ".join(f"{name} {each:.3f} ms" for name, each in ms.items()))
    yield from pools_table(ms)


def pools_table(ms: Mapping[str, float]) -> Iterator[Row]:
    """The rows of `pools_rows`, from milliseconds."""
    for driver in ("local-task", "local-sync"):
        alone = ms[driver] + ms["torch"]
        yield Row(
            f"kernels on {driver} and torch's operators in turns, against each alone",
            ms[f"{driver} and torch"] / alone,
            "times the time",
            "any",
            True,
        )
    yield at_most(
        "kernels and torch's operators in turns: all threads against the calling one",
        ms["local-task and torch"] / ms["local-sync and torch"],
        "times the time",
        1.0,
    )


class OneDriver(dict[str, str]):
    """Remembers one driver for every kernel."""

    def get(self, key: str, default: Any = None) -> Any:
        """The driver, for any key."""
        return self["driver"]


def pooled_signature() -> Any:
    """A 3x3 convolution of ResNet-50, which takes about 1 ms on two cores."""
    from dispatch_profiler.boo.op_exports.conv import ConvSignature

    return ConvSignature(
        input_shape=[1, 28, 28, 128],
        kernel_shape=[128, 3, 3, 128],
        shared_layout="NHWC",
        padding=1,
        dtype="f32",
    )


def provider_of(signature: Any) -> Any:
    """The kernels of a signature, from the cache or the compiler."""
    from dispatch_profiler.boo.environment import launch_settings
    from dispatch_profiler.boo.kernels import OperationKernels

    return OperationKernels(signature.operation, signature.func_name, launch_settings())
