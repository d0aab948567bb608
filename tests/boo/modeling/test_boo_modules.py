"""BooConv1d, BooConv2d and BooConv3d are torch's modules, computed by our kernels; models can be made of them."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from recorded_launches import recorded_launches  # noqa: E402

from dispatch_profiler.boo.modeling import (  # noqa: E402
    BooConv1d,
    BooConv2d,
    BooConv3d,
    Replacement,
    replace_conv2d_with_boo_conv,
    replace_convs_with_boo,
)
from dispatch_profiler.errors import UsageError  # noqa: E402

nn: Any = torch.nn
OURS: dict[int, Any] = {1: BooConv1d, 2: BooConv2d, 3: BooConv3d}
THEIRS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}

pytestmark = pytest.mark.usefixtures("plans_of_this_test")


@pytest.fixture
def launches() -> Iterator[list[Any]]:
    with recorded_launches() as found:
        yield found


def both(axes: int, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Our module and torch's, with the same parameters."""
    made = []
    for modules in (OURS, THEIRS):
        torch.manual_seed(0)
        made.append(modules[axes](*args, **options))
    return made[0], made[1]


def image(axes: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(2, 4, *(5, 6, 7)[:axes], generator=torch.Generator().manual_seed(1)).to(dtype)


def same(found: Any, expected: Any) -> bool:
    return bool(
        found.shape == expected.shape
        and found.stride() == expected.stride()
        and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "padding_mode"),
    [
        *((2, "zeros"), (2, "reflect"), (1, "circular"), (3, "replicate")),
        *(pytest.param(axes, "zeros", marks=pytest.mark.slow) for axes in (1, 3)),
    ],
)
def test_modules_compute_what_those_of_torch_do(axes: int, padding_mode: str, launches: list[Any]):
    ours, theirs = both(axes, 4, 6, 3, padding=1, padding_mode=padding_mode, groups=2)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert repr(ours) == "Boo" + repr(theirs)

    with torch.no_grad():
        assert same(ours(image(axes)), theirs(image(axes)))
        assert same(ours(image(axes)[0]), theirs(image(axes)[0]))
    assert len(launches) == 2


@pytest.mark.slow
def test_all_arguments_of_torch():
    for options in (
        {"padding": "same", "bias": False},
        {"padding": "same", "padding_mode": "reflect", "dilation": 2},
        {"padding": (2, 1), "stride": [1, 2], "dtype": torch.float64, "device": "cpu"},
    ):
        ours, theirs = both(2, 4, 6, 3, **options)
        x = image(2, options.get("dtype", torch.float32))
        assert torch.allclose(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    for options in ({"groups": 3}, {"padding": "full"}, {"padding": "same", "stride": 2}):
        with pytest.raises(ValueError) as expected:
            nn.Conv2d(4, 6, 3, **options)
        with pytest.raises(ValueError) as found:
            BooConv2d(4, 6, 3, **options)  # type: ignore[arg-type]
        assert str(found.value) == str(expected.value)


#: Arguments of torch's modules, each with values that it can have; `dtype` and `device` are as torch's.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "padding same": {"padding": "same", "dilation": 2},
    "padding valid": {"padding": "valid"},
    "padding_mode reflect": {"padding": 1, "padding_mode": "reflect"},
    "padding_mode replicate": {"padding": 1, "padding_mode": "replicate"},
    "padding_mode circular": {"padding": 1, "padding_mode": "circular"},
    "dilation": {"dilation": 2},
    "groups": {"groups": 4},
    "no bias": {"bias": False},
    "dtype": {"dtype": torch.float64},
    "device": {"device": "cpu"},
}


def is_quick(name: str, axes: int) -> bool:
    if axes != 2:
        return name == "stride"
    return name not in ("padding_mode replicate", "padding_mode circular")


def through_export(module: Any, x: Any) -> Any:
    saved = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), saved)
    saved.seek(0)
    return torch.export.load(saved).module()


def through_state(module: Any, axes: int, options: dict[str, Any]) -> Any:
    loaded = OURS[axes](4, 8, 3, **options)
    loaded.load_state_dict(module.state_dict())
    return loaded


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        # The methods of the three classes call the same functions, and all modes of padding but zeros are one path.
        pytest.param(name, axes, marks=() if is_quick(name, axes) else pytest.mark.slow)
        for name in ARGUMENTS
        for axes in (1, 2, 3)
    ],
)
def test_a_module_with_each_argument_survives_every_way_to_pass_it_on(axes: int, name: str):
    options = ARGUMENTS[name]
    ours, theirs = both(axes, 4, 8, 3, **options)
    x = image(axes, options.get("dtype", torch.float32))
    with torch.no_grad():
        expected = theirs(x)
        for each in (
            ours,
            copy.deepcopy(ours),
            pickle.loads(pickle.dumps(ours)),
            through_state(theirs, axes, options),
        ):
            assert type(each) is OURS[axes]
            assert same(each(x), expected)
        assert same(through_export(ours, x)(x), expected)


def test_modules_without_memory_are_filled_later():
    ours = BooConv2d(4, 6, 3, device="meta")
    assert ours(image(2).to("meta")).shape == (2, 6, 3, 4)
    theirs = nn.Conv2d(4, 6, 3)
    ours.to_empty(device="cpu").load_state_dict(theirs.state_dict())
    assert same(ours(image(2)), theirs(image(2)))


def test_states_copies_and_pickles():
    ours, theirs = both(2, 4, 6, 3)
    other = BooConv2d(4, 6, 3)
    other.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    saved = io.BytesIO()
    torch.save(ours, saved)
    saved.seek(0)
    copies = (
        other,
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(saved, weights_only=False),
    )
    with torch.no_grad():
        expected = theirs(image(2))
        for each in copies:
            assert type(each) is BooConv2d
            assert same(each(image(2)), expected)
            each.weight.mul_(2)
        assert same(ours(image(2)), expected)


@pytest.mark.slow
def test_exported_and_channels_last_modules():
    ours, theirs = both(2, 4, 6, 3)
    program = torch.export.export(ours, (image(2),))
    assert same(program.module()(image(2)), theirs(image(2)))
    ours, theirs = (each.to(memory_format=torch.channels_last) for each in (ours, theirs))
    assert same(ours(image(2)), theirs(image(2)))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(image(2)).dtype is theirs(image(2)).dtype is torch.bfloat16


# -- models -----------------------------------------------------------------------------------------


class Special(nn.Conv2d):
    """Computes something else."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.first
        self.tied = nn.Conv2d(4, 4, 3, padding=1)
        self.tied.weight = self.first.weight
        self.rest = nn.Sequential(nn.Conv2d(4, 4, 1, stride=2), nn.ReLU(), Special(4, 4, 1))

    def forward(self, x: Any) -> Any:
        return self.rest(self.tied(self.again(self.first(x))))


def identities(network: Any) -> list[tuple[str, int]]:
    return [(name, id(value)) for name, value in [*network.named_parameters(), *network.named_modules()]]


def test_a_model_keeps_everything_but_the_classes(launches: list[Any]):
    network, x = Network(), image(2)
    expected = network(x)
    network.rest.eval()
    seen: list[Any] = []
    network.first.register_forward_hook(lambda *_: seen.append("hook"))
    before = identities(network)
    reports: list[Replacement] = []

    assert replace_convs_with_boo(network, report=reports.append) is network

    assert before == identities(network)
    assert [type(each).__name__ for each in (network.first, network.tied, *network.rest)] == [
        "BooConv2d", "BooConv2d", "BooConv2d", "ReLU", "Special"]  # fmt: skip
    assert network.again is network.first
    assert network.tied.weight is network.first.weight
    assert (network.first.training, network.rest[0].training) == (True, False)
    assert same(network(x), expected)
    assert len(launches) == 4
    assert seen == ["hook"] * 2
    assert {each.name: each.reason for each in reports} == {
        "first": "", "tied": "", "rest.0": "", "rest.2": "Special is a subclass of Conv2d"}  # fmt: skip
    replace_convs_with_boo(network, report=reports.append)
    assert reports[4].reason == "it is already a BooConv2d"


def test_filters():
    def replaced(**options: Any) -> list[str]:
        found: list[Replacement] = []
        replace_convs_with_boo(Network(), report=found.append, **options)
        return [each.name for each in found if not each.reason]

    assert replaced(allowed_spatial_dims=(1, 3)) == []
    assert replaced(kwarg_mapping={2: {"stride": (1, 1)}}) == ["first", "tied"]
    assert replaced(kwarg_mapping={2: {"stride": 2, "kernel_size": [1, 1]}}) == ["rest.0"]
    assert replaced(kwarg_mapping={1: {"stride": 2}}) == ["first", "tied", "rest.0"]
    assert replaced(where=lambda name, module: "rest" in name and module.stride == (2, 2)) == ["rest.0"]
    model: Any = replace_conv2d_with_boo_conv(Network(), stride=(2, 2))
    assert [type(each).__name__ for each in (model.first, model.rest[0])] == ["Conv2d", "BooConv2d"]


def test_invalid_filters_change_nothing():
    network = Network()
    invalid: list[tuple[dict[str, Any], str]] = [
        ({"allowed_spatial_dims": (2, 4)}, "4"),
        ({"kwarg_mapping": {2: {"strid": 1}}}, "has no attribute 'strid'"),
    ]
    for options, message in invalid:
        with pytest.raises(UsageError, match=message):
            replace_convs_with_boo(network, **options)
    assert type(network.first) is nn.Conv2d


@pytest.mark.parametrize("model", [None, nn.Conv2d, [nn.Conv2d(1, 1, 1)]])
def test_what_is_no_model_is_rejected(model: Any):
    with pytest.raises(UsageError, match=r"replace_convs_with_boo takes a torch\.nn\.Module, but got"):
        replace_convs_with_boo(model)


def test_a_model_that_is_a_convolution_is_replaced_and_logged(caplog: pytest.LogCaptureFixture):
    module = nn.Conv1d(4, 6, 3)
    expected = module(image(1))
    with caplog.at_level(logging.INFO, "dispatch_profiler.boo"):
        assert type(replace_convs_with_boo(module)) is BooConv1d
    assert same(module(image(1)), expected)
    assert "the model: computed by BooConv1d" in caplog.text


def test_parametrized_convolutions(launches: list[Any]):
    module = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3))
    expected = module(image(2))

    replace_convs_with_boo(module)

    assert isinstance(module, BooConv2d)
    assert same(module(image(2)), expected)
    assert len(launches) == 1
    module(image(2)).square().mean().backward()
    assert module.parametrizations.weight.original0.grad is not None
    nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert type(module) is BooConv2d
    assert same(module(image(2)), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
def test_models_train_as_with_torch():
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)
    )
    ours = replace_convs_with_boo(copy.deepcopy(theirs))
    losses = []
    for model in (ours, theirs):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(image(2)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
