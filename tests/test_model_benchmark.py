"""The models of benchmarks/models.py, and what it makes of what it measures."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
from script_helpers import load_script

torch = pytest.importorskip("torch")
models = load_script("benchmarks/_models.py")
benchmark = load_script("benchmarks/models.py")
training = load_script("benchmarks/_model_training.py")
gradients = load_script("benchmarks/_gradients.py")
pools = load_script("benchmarks/_model_pools.py")
EVERY = {**models.MODELS, "resnet18": models.RESNET18}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are measured in the process of the test."""
    monkeypatch.setattr(benchmark, "in_new_process", lambda function, *arguments: function(*arguments))


def test_the_options_name_every_model():
    assert tuple(models.MODELS) == benchmark.NAMES


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("resnet18", 11_689_512),
        ("bert", 4 * 7_087_872),
    ],
)
def test_models_have_the_parameters_of_the_published_ones(name: str, parameters: int):
    """The counts that torchvision states; a layer of BERT-base is 12 h^2 + 13 h with h = 768."""
    assert sum(each.numel() for each in EVERY[name].make().parameters()) == parameters


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.slow if each in ("resnet50", "mobilenet_v2") else ())
        for each in sorted(EVERY)
    ],
)
def test_models_are_the_same_each_time_and_yield_ordinary_values(name: str):
    example = EVERY[name]
    state = torch.random.get_rng_state()
    one, other = example.model(), example.model()
    inputs = example.inputs(1, extent=64)
    with torch.inference_mode():
        found = one(inputs)
        torch.testing.assert_close(found, other(inputs), rtol=0, atol=0)

    assert torch.equal(torch.random.get_rng_state(), state)
    assert not one.training
    assert torch.isfinite(found).all() and 1e-2 < found.std() < 1e2
    if example.has_images:
        assert inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_statistics_of_batch_norms_are_random_and_positive():
    norms = [each for each in models.RESNET18.model().modules() if isinstance(each, torch.nn.BatchNorm2d)]

    assert len(norms) == 20
    for norm in norms:
        assert (norm.running_var > 0).all() and norm.running_mean.std() > 1e-3
        assert norm.momentum == 0.1 and norm.weight.requires_grad


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow) if each == "resnet50" else each for each in sorted(EVERY)],
)
def test_each_model_can_be_captured(name: str):
    model, inputs = getattr(models, name)(batch=2)

    assert sum(each.numel() for each in model.parameters()) > 1e5
    assert inputs.shape == EVERY[name].inputs(2).shape


# -- what is measured ------------------------------------------------------------------------------


def test_a_speedup_compares_what_was_measured_one_after_the_other():
    """The machine becomes three times slower in the last rounds; both sides of a round are affected."""
    assert benchmark.speedup([1.0, 1.0, 3.0], [2.0, 2.0, 6.0]) == 2.0


def side_times(**others: list[float]) -> dict[str, list[float]]:
    """Times of all sides: each of ours is twice as fast as the one that it is compared with."""
    plain = {"eager": [4.0], "inductor": [2.0], benchmark.FREEZING: [1.0]}
    ours = {side: [plain[theirs][0] / 2] for side, (theirs, _) in benchmark.AGAINST.items()}
    return {**plain, **ours, **others}


def test_means_are_geometric_and_each_side_has_its_own_goal():
    every = [side_times(**{benchmark.AUTOTUNE: [1.0]}), side_times(**{benchmark.AUTOTUNE: [4.0]})]
    rows = list(benchmark.means(every))

    assert [row.value for row in rows] == pytest.approx([2.0, 1.0, 2.0])
    assert [(row.must, row.holds) for row in rows] == [(">= 1.4", True), (">= 1.1", False), (">= 1.3", True)]
    assert rows[2].name.endswith("against inductor with freezing")


@pytest.mark.usefixtures("in_this_process")
def test_every_model_is_reported_and_none_may_be_slower_than_inductor(monkeypatch):
    slower = {benchmark.AUTOTUNE: [2.2], benchmark.FROZEN: [1.1]}
    times = {side: each * 20 for side, each in side_times(**slower).items()}
    monkeypatch.setattr(benchmark, "inference_times", lambda name, batch, scale: (f"{name} {batch}", times))

    rows = list(benchmark.inference_rows(benchmark.Scale()))

    assert len(rows) == 4 * 2 * 4 * 2 + 3
    missed = [row.name for row in rows if not row.holds]
    assert len(missed) == 4 * 2 * 2 + 2  # 0.91 of inductor with both sides, and the means
    assert all("autotune" in name for name in missed)
    assert rows[0].value == pytest.approx(4.0)
    assert [row.value for row in rows[-3:]] == pytest.approx([4 / 2.2, 2 / 2.2, 1 / 1.1])


def test_a_row_holds_if_its_interval_reaches_the_goal():
    times = side_times(**{"inductor": [1.0] * 20, benchmark.AUTOTUNE: [1.2, 1.0] * 10, "eager": [1.0] * 20})
    times = {side: each * (20 // len(each)) for side, each in times.items()}
    (row,) = [r for r in benchmark.model_rows("m", times) if r.name == "m, autotune: against inductor"]

    assert row.value < 0.95
    assert row.holds


@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_fails_is_a_row_that_missed_its_goal_and_the_others_are_measured(monkeypatch, capsys):
    def times(name, batch, scale):
        if name == "bert":
            sys.exit("planted")
        return name, {"eager": [4.0], "inductor": [2.0], benchmark.AUTOTUNE: [1.0]}

    monkeypatch.setattr(benchmark, "inference_times", times)
    rows = list(benchmark.inference_rows(benchmark.QUICK))

    assert [row.name for row in rows if not row.holds] == ["bert, batch 1: against inductor (failed)"]
    assert rows[-2].value == pytest.approx(4.0)
    assert "SystemExit: planted" in capsys.readouterr().out


def test_a_new_process_returns_what_a_function_does_and_shares_nothing():
    assert benchmark.in_new_process(pow, 2, 10) == 1024
    assert benchmark.in_new_process(os.getpid) != os.getpid()
    with pytest.raises(SystemExit, match="planted"):
        benchmark.in_new_process(sys.exit, "planted")
    with pytest.raises(BrokenProcessPool):
        benchmark.in_new_process(signal.raise_signal, signal.SIGKILL)


def test_the_library_is_that_of_the_option(monkeypatch):
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "another")
    monkeypatch.setattr(sys, "argv", ["models.py", "--parts", "pools", "--library", "xeon-avx512"])
    seen = []
    monkeypatch.setattr(
        benchmark, "ROWS", {"pools": lambda scale: seen.append(os.environ["BOO_TUNING_SPEC_PATH"]) or []}
    )
    benchmark.main()

    assert seen == ["xeon-avx512"]


def test_without_the_backend_inductor_is_still_compared_and_a_line_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(torch._dynamo, "list_backends", lambda exclude_tags: ["inductor"])

    assert not benchmark.is_available()
    assert list(benchmark.compilation_rows(benchmark.QUICK)) == []
    assert "has no backend 'iree_boo_inductor'" in capsys.readouterr().out


def test_outputs_that_differ_end_the_benchmark():
    expected = torch.tensor([1.0, 100.0])
    benchmark.check_close("same", expected + 0.05, expected)
    for wrong in (expected + 0.2, expected.double(), expected[:1], expected * torch.nan):
        with pytest.raises(SystemExit):
            benchmark.check_close("another", wrong, expected)


def test_gradients_that_differ_end_the_benchmark():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    inputs, labels = torch.randn(4, 3, 5, 5), torch.arange(4)
    mean = model[1].running_mean.clone()

    def loss(model):
        return torch.nn.functional.cross_entropy(model(inputs.to(model[0].weight.dtype)), labels)

    exact = gradients.gradients(copy.deepcopy(model).double(), loss)
    found = gradients.gradients(model, loss)

    assert torch.equal(model[1].running_mean, mean)
    training.check_gradients({"eager": found, benchmark.BACKEND: found}, exact)
    wrong = {**found, "0.weight": found["0.weight"] * 1.1}
    with pytest.raises(SystemExit, match=r"0\.weight"):
        training.check_gradients({"eager": found, benchmark.BACKEND: wrong}, exact)


def test_a_training_step_changes_the_parameters():
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    gradients.training_step(model, lambda model: model(torch.ones(2, 3)).sum())()

    assert not torch.equal(model.weight, before)


def test_the_cost_of_two_thread_pools_is_that_of_the_turns_over_the_sum():
    ms = {"torch": 1.0, "local-task": 1.0, "local-sync": 2.0, "local-task and torch": 3.0}
    rows = list(pools.pools_table({**ms, "local-sync and torch": 3.0}))

    assert [row.value for row in rows] == [1.5, 1.0, 1.0]
    assert all(row.holds for row in rows)


def test_options_choose_a_part(monkeypatch):
    words = ["models.py", "--quick", "--models", "bert", "--batches", "2", "4", "--parts", "pools"]
    monkeypatch.setattr(sys, "argv", words)
    found = benchmark.options()
    scale = benchmark.scale_of(found)

    assert found.parts == ["pools"]
    assert (scale.models, scale.compilations, scale.batches) == (("bert",), ("bert",), (2, 4))
    assert scale.rounds == benchmark.QUICK.rounds


def test_types_on_a_gpu_are_an_option(monkeypatch):
    for words, types in (([], ("f16", "bf16")), (["--types", "bf16"], ("bf16",))):
        monkeypatch.setattr(sys, "argv", ["models.py", *words])
        assert benchmark.scale_of(benchmark.options()).types == types


def test_a_batch_of_nothing_is_rejected(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["models.py", "--batches", "0"])
    with pytest.raises(SystemExit, match="--batches: 0"):
        benchmark.scale_of(benchmark.options())


def test_a_type_that_fails_on_a_gpu_is_a_row_that_missed_its_goal_and_the_others_are_measured(
    monkeypatch, capsys
):
    def times(title, example, dtype, scale):
        if dtype is torch.float16:
            raise RuntimeError("planted")
        return {
            "eager": [2.4],
            "inductor": [1.8],
            benchmark.GRAPHS_OF_INDUCTOR: [1.5],
            benchmark.AUTOTUNE: [2.0],
            benchmark.GRAPHS: [1.2],
        }

    monkeypatch.setattr(torch._dynamo, "reset", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(benchmark, "is_available", lambda: True)
    monkeypatch.setattr(benchmark, "cuda_times", times)
    half, *others, bfloat = benchmark.cuda_rows(benchmark.QUICK)

    assert {each.name.partition("GPU, ")[2]: each.value for each in others} == {
        "inductor: against eager": pytest.approx(2.4 / 1.8),
        "inductor with CUDA graphs: against eager": pytest.approx(1.6),
        "autotune: against eager": pytest.approx(1.2),
        "autotune: against inductor": pytest.approx(0.9),
        "autotune with CUDA graphs: against inductor with CUDA graphs": pytest.approx(1.25),
    }
    assert not half.holds and bfloat.holds and bfloat.value == pytest.approx(2.0)
    assert "RuntimeError: planted" in capsys.readouterr().out


def test_rows_are_printed_and_written_as_soon_as_they_are_known(monkeypatch, tmp_path, capsys):
    path = tmp_path / "rows.json"

    def rows(scale):
        yield benchmark.at_least("the first", 2.0, "times as fast", 1.0)
        assert json.loads(path.read_text())[0]["name"] == "the first"
        assert "the first: 2.00" in capsys.readouterr().out
        yield benchmark.at_least("the second", 2.0, "times as fast", 1.0)

    monkeypatch.setattr(benchmark, "ROWS", {"pools": rows})
    monkeypatch.setattr(sys, "argv", ["models.py", "--parts", "pools", "--json", str(path)])

    assert benchmark.main() == 0
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.slow
def test_models_are_copied_outside_of_inference_mode(monkeypatch: pytest.MonkeyPatch):
    """As users create their models."""
    copies = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: (copies.append(model), model)[1])
    monkeypatch.setattr(benchmark, "is_available", lambda: False)
    monkeypatch.setattr(benchmark, "in_turns", lambda *_: {})

    benchmark.inference_times("mobilenet_v2", 1, benchmark.QUICK)

    assert len(copies) == 2  # inductor, without and with freezing
    assert not any(each.is_inference() for copied in copies for each in copied.parameters())


def test_a_library_that_does_not_exist_ends_the_benchmark(monkeypatch):
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "before")
    with pytest.raises(SystemExit, match=r"--library: .*missing"):
        benchmark.use_library("missing")
    assert os.environ["BOO_TUNING_SPEC_PATH"] == "before"
    benchmark.use_library("xeon-avx512")
    assert os.environ["BOO_TUNING_SPEC_PATH"] == "xeon-avx512"
