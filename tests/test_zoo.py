"""What benchmarks/zoo.py makes of what it measures, and the models that need no library."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
from script_helpers import load_script

from dispatch_profiler import cores

torch = pytest.importorskip("torch")
zoo = load_script("benchmarks/zoo.py")
models = load_script("benchmarks/_zoo_models.py")
zoo_training = load_script("benchmarks/_zoo_training.py")
FROZEN, PLAIN = "ours frozen", "ours"


def measured(name: str = "model", **times: float):
    """Sides with the milliseconds of each; 0 for a side that failed."""
    sides = {
        side.replace("_", " "): zoo.Side((ms, ms, ms), 1.0) if ms else zoo.Side(failure="no such operator")
        for side, ms in times.items()
    }
    sides = {{"frozen": FROZEN, "plain": PLAIN}.get(side, side): value for side, value in sides.items()}
    return zoo.Measured(name, 2, 1, "float32", sides)


def test_a_ratio_compares_with_the_fastest_peer_that_runs():
    each = measured(inductor=4.0, freezing=3.0, OpenVINO=0, ONNX_Runtime=2.0, plain=2.0, frozen=4.0)
    assert each.ratio("frozen") == 0.5
    assert each.ratio("not frozen") == 2.0
    assert measured(freezing=3.0, frozen=0).ratio("frozen") == 0.0
    assert measured(freezing=0, frozen=2.0).ratio("frozen") is None
    assert measured(freezing=3.0).ratio("frozen") is None


def test_rows_have_each_model_and_the_geometric_mean():
    rows = list(zoo.rows([measured("a", freezing=2.0, frozen=1.0), measured("b", freezing=1.0, frozen=2.0)]))
    assert [(row.name, row.value) for row in rows[:2]] == [("a, frozen", 2.0), ("b, frozen", 0.5)]
    assert rows[2].value == pytest.approx(1.0) and not rows[2].holds
    failed = list(zoo.rows([measured("a", freezing=2.0, frozen=0)]))
    assert [row.value for row in failed] == [0.0, 0.0]


def test_a_line_says_why_a_side_has_no_time():
    text = zoo.shown(measured(eager=2.0, OpenVINO=0))
    assert "eager" in text and "2.00 ms" in text and "no such operator" in text


class Clock:
    """Time that passes in `sleep` alone. For `busy` seconds, two threads spin meanwhile."""

    def __init__(self, busy: float) -> None:
        self.now, self.busy = 0.0, busy

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 2 * min(self.now, self.busy)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("busy", "waited"), [(0.0, 0.005), (0.1, 0.105), (100.0, 2.0)])
def test_a_side_waits_for_the_threads_of_the_one_before(monkeypatch, busy: float, waited: float):
    """Until they stop spinning, but not forever."""
    clock = Clock(busy)
    monkeypatch.setattr(cores, "time", clock)
    cores.wait_for_idle_threads(longest=2.0)
    assert clock.now == pytest.approx(waited, abs=0.006)


def test_a_side_that_is_wrong_or_fails_has_no_times(capsys):
    def error_of(result):
        return float((result.double() - 1).abs().max())

    side, run = zoo.started("a", lambda: lambda: torch.ones(4), error_of, 1e-4)
    assert run is not None and side.error == 0.0
    side, run = zoo.started("b", lambda: lambda: 1.01 * torch.ones(4), error_of, 1e-4)
    assert run is None and side.failure == "wrong: error 1.0e-02"

    def fails():
        raise NotImplementedError("no bf16\nmore")

    side, run = zoo.started("c", fails, error_of, 1e-4)
    assert run is None and side.failure == "NotImplementedError: no bf16"


@pytest.mark.slow
def test_the_volume_model_keeps_extents_and_ordinary_values():
    zoo_model = models.zoo_model("unet3d")
    x = torch.randn(1, 1, 8, 12, 16)
    with torch.inference_mode():
        result = zoo_model.module(x)
    assert result.shape == (1, 3, 8, 12, 16) and 1e-2 < result.std() < 1e2
    again = models.zoo_model("unet3d")
    for one, other in zip(zoo_model.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_first_tensor_of_a_result_is_the_output():
    class Nested(torch.nn.Module):
        def forward(self, x):
            return {"out": (x + 1, x), "aux": x}

    assert torch.equal(models.SingleTensor(Nested())(torch.zeros(2)), torch.ones(2))


def test_an_unknown_library_is_named():
    with pytest.raises(ValueError, match="keras: not one of torchvision, timm, transformers, unet3d"):
        models.zoo_model("keras:resnet50")


def test_more_threads_than_cores_are_refused(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("sys.argv", ["zoo.py", "--threads=4096", "unet3d"])
    with pytest.raises(SystemExit, match="--threads=4096: this process may use"):
        zoo.main()


def test_an_unknown_side_is_refused_with_the_names():
    assert zoo.chosen_sides("eager,ours frozen") == ["eager", "ours frozen"]
    with pytest.raises(SystemExit, match="no side 'our'; the sides are eager, inductor"):
        zoo.chosen_sides("our")
    with pytest.raises(SystemExit, match="no side 'ours'; the sides are eager step, inductor step"):
        zoo.chosen_sides("ours", training=True)


def test_a_level_limits_every_side(monkeypatch):
    """Sides that cannot be limited are left out, and inductor's usual cache is not used."""
    assert zoo.chosen_sides(None, limited=True) == ["eager", "inductor", "freezing", "ours", "ours frozen"]
    with pytest.raises(SystemExit, match="no side 'OpenVINO'"):
        zoo.chosen_sides("OpenVINO", limited=True)
    seen = []

    def run(_function, name, *_arguments):
        seen.append(
            {each: os.environ.get(each) for each in (*zoo.LIMITS["x86-64-v3"], "TORCHINDUCTOR_CACHE_DIR")}
        )
        return measured(name, freezing=1.05, frozen=1.0)

    monkeypatch.setattr(zoo, "in_new_process", run)
    monkeypatch.setattr("sys.argv", ["zoo.py", "--level=x86-64-v3", "--threads=1", "unet3d"])
    before = dict(os.environ)
    assert zoo.main() == 1  # 1.05 misses 1.1
    (limits,) = seen
    assert (limits["ATEN_CPU_CAPABILITY"], limits["BOO_CPU_LEVEL"]) == ("avx2", "x86-64-v3")
    assert not Path(limits["TORCHINDUCTOR_CACHE_DIR"]).exists()
    assert os.environ == before


class Dropping(torch.nn.Module):
    """A convolution, a batch norm, and dropout as a module, as an attribute and as a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.drop, self.attention_dropout, self.training_share = torch.nn.Dropout(0.5), 0.5, 0.5
        self.config = type("Config", (), {})()
        self.config.hidden_dropout_prob = 0.5

    def forward(self, x):
        x = torch.nn.functional.dropout(self.norm(self.conv(x)), self.attention_dropout, self.training)
        x = torch.nn.functional.dropout(self.drop(x), self.config.hidden_dropout_prob, self.training)
        return x.relu()


def test_training_has_no_dropout_and_batch_statistics():
    model, x = zoo_training.trainable(Dropping()), torch.randn(4, 3, 6, 6)
    assert model.training and model.training_share == 0.5
    mean = model.norm.running_mean.clone()
    assert torch.equal(model(x), model(x))
    assert not torch.equal(mean, model.norm.running_mean)


def test_the_squared_error_is_the_same_for_each_type_and_copy():
    model, x = zoo_training.trainable(Dropping()), torch.randn(4, 3, 6, 6)
    loss = zoo_training.squared_error(model, x)
    exact = loss(copy.deepcopy(model).double())
    assert exact.dtype is torch.float64 and exact > 0.1
    torch.testing.assert_close(loss(model).double(), exact, rtol=1e-5, atol=0)


def test_a_training_step_is_measured_beside_its_peers(monkeypatch):
    """Each side compiles for itself, although all copies have the same code."""
    used = []

    def compiled(name):
        return lambda model: used.append((name, os.environ.get("BOO_USE_BACKWARD_KERNELS"))) or model

    sides = {
        "inductor step": (compiled("inductor"), {}),
        "our step with backward kernels": (compiled("ours"), {"BOO_USE_BACKWARD_KERNELS": "1"}),
    }
    small = models.ZooModel("small", Dropping().eval(), lambda batch: torch.randn(batch, 3, 6, 6))
    monkeypatch.setattr("benchmarks._zoo_training.training_sides", lambda: sides)
    monkeypatch.setattr("benchmarks._zoo_models.zoo_model", lambda name: small)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    each = zoo.measure_training("small", 1, 2, "float32", None, 2, 1e-3)
    assert [name for name, _ in used] == ["inductor", "ours"]
    assert all(len(side.times) == 2 and side.error < 1e-3 for side in each.sides.values())
    names = [row.name for row in zoo.rows([each])]
    assert names == [
        "small, training",
        "geometric mean: our step with backward kernels against inductor step",
    ]
