"""Tuning files, the names of their problems, and shares of a workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from every_kind import EVERY_MODE, IDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Default
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import NullTarget, parse_target
from dispatch_profiler.tuner.evaluation.building import BuildOptions
from dispatch_profiler.tuner.search.events import Evaluated, Event, Following
from dispatch_profiler.tuner.search.operation_search import ROUND_SIZE
from dispatch_profiler.tuner.search.search import SearchOptions
from dispatch_profiler.tuner.spaces.seeds import seeds
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY
from dispatch_profiler.tuner.tunings.problems import (
    FLOPS,
    TIME,
    DefaultTime,
    TuningProblem,
    Weighed,
    prefix,
    problems_of,
    read_summary,
    shares_of,
    summary_text,
)
from dispatch_profiler.tuner.tunings.tuning_file import (
    DEFAULT_EVALUATIONS,
    NAME,
    Searched,
    Tuning,
    read_tuning,
    read_tunings,
    search_tunings,
    task_of,
    tuning_text,
)
from dispatch_profiler.workloads import Workload, WorkloadEntry, read_workload

CPU = parse_target("llvm-cpu")
OPERATION = Matmul(128, 768, 768, rhs_layout="n")
TUNING = Tuning(
    "SSS_TN_0", OPERATION, CPU, "local-task", 48, 31.25, 'a "log".yaml:1', ("cpu_tiles", "flow"), "exhaustive", 7, 2.5, 9,
    least_gain=0.5, modules=("encoder.0.query", "encoder.0.key"),
)  # fmt: skip
SHORT = """\
format: dispatch_profiler tuning
operation: {kind: matmul, m: 128, n: 768, k: 768, rhs_layout: n}
target: llvm-cpu
"""


def save(text: str, name: str = "x.yaml") -> Path:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def test_a_tuning_is_read_back():
    assert read_tuning(save(tuning_text(TUNING))) == TUNING


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
@pytest.mark.parametrize("target", ["llvm-cpu:znver4", "rocm:gfx950"])
def test_every_operation_is_read_back(operation: Operation, target: str):
    tuning = Tuning("X_0", operation, parse_target(target), "hip://1")
    assert read_tuning(save(tuning_text(tuning))) == tuning


def test_only_the_operation_and_the_target_are_required():
    assert read_tuning(save(SHORT, "mine.yaml")) == Tuning(
        "mine", OPERATION, CPU, "local-task", 1, None, "", (), DEFAULT_STRATEGY, DEFAULT_EVALUATIONS
    )


def test_a_budget_in_seconds_replaces_the_default_number_of_evaluations():
    assert (read_tuning(save(SHORT + "seconds: 60\n")).evaluations, DEFAULT_EVALUATIONS) == (None, 64)
    both = read_tuning(save(SHORT + "seconds: 60\nevaluations: 9\n"))
    assert (both.evaluations, both.seconds) == (9, 60.0)


def test_its_space_has_the_kinds_that_it_names():
    every = {space.kind.kind for space in replace(TUNING, kinds=()).space().spaces}
    assert every > {"cpu_tiles", "flow"}
    assert {space.kind.kind for space in TUNING.space().spaces} == {"cpu_tiles", "flow"}


def test_its_space_packs_weights_only_if_they_are_constants():
    """It is read back, and its file says nothing otherwise."""
    packed = replace(TUNING, kinds=(), packed_weights=True)
    spaces = {True: packed.space().spaces, False: replace(packed, packed_weights=False).space().spaces}

    def packing(constant: bool) -> list[bool]:
        points = [(each, tuple(axis.choices[0] for axis in each.axes)) for each in spaces[constant]]
        return [each.to_configuration(point).packs_weight for each, point in points]

    assert any(packing(True)) and not any(packing(False))
    assert spaces[True][: len(spaces[False])] == spaces[False]
    assert read_tuning(save(tuning_text(packed))) == packed
    assert "packed_weights" not in tuning_text(TUNING)


def test_where_rules_know_fast_kernels_a_search_has_few_seeds_and_ranks_the_others(host_has):
    """With the baselines, the seeds are a round. Elsewhere, everything that is likely to be fast is a seed."""
    host_has("avx512f")
    packed = replace(TUNING, kinds=(), evaluations=64, target=parse_target("llvm-cpu"), packed_weights=True)
    task = task_of(packed)
    likely = [
        each for each in seeds(OPERATION, packed.target, packed_weights=True) if each not in task.baselines
    ]
    assert len(task.first_round) == len(task.baselines) + len(task.seeds) == ROUND_SIZE
    assert [*task.seeds, *task.space.likely] == likely and task.space.likely
    usual = task_of(replace(packed, packed_weights=False))
    every = seeds(OPERATION, packed.target)
    assert {*usual.seeds, *usual.baselines} >= set(every) and usual.space.likely == ()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("format: dispatch_profiler tuning", "format: other", "is not a tuning file"),
        ("format: dispatch_profiler tuning", "- 3", "x.yaml"),
        ("target: llvm-cpu", "", "target: missing"),
        ("target: llvm-cpu", "target: [1]", "target: expected a string"),
        ("target: llvm-cpu", "target: cpu", "unknown target 'cpu'"),
        ("kind: matmul", "kind: matmull", "unknown operation kind 'matmull'"),
        ("m: 128", "m: 0", "m"),
        ("m: 128, ", "", "m"),
        ("operation: {", "operations: {", "unknown key 'operations'"),
        ("target: llvm-cpu", "target: llvm-cpu\nstrategy: gentic", "strategy: unknown name 'gentic'"),
        ("target: llvm-cpu", "target: llvm-cpu\nkinds: [cpu_tile]", "kinds: unknown name 'cpu_tile'"),
        ("target: llvm-cpu", "target: llvm-cpu\nkinds: cpu_tiles", "kinds: expected a list"),
        ("target: llvm-cpu", "target: llvm-cpu\nevaluations: 0", "evaluations: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nevaluations: 1.5", "evaluations: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\npacked_weights: 2", "packed_weights: expected"),
        ("target: llvm-cpu", "target: llvm-cpu\nseconds: 0", "seconds: expected a number above 0"),
        ("target: llvm-cpu", "target: llvm-cpu\nseconds: .nan", "seconds: expected a number"),
        ("target: llvm-cpu", "target: llvm-cpu\ncount: 0", "count: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nshare: -1", "share: expected a number of at least 0"),
        ("target: llvm-cpu", "target: llvm-cpu\nseed: -1", "seed: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nversion: 2", "version: this program reads version 1"),
        ("target: llvm-cpu", "target: llvm-cpu\nname: ../x", "name: expected letters"),
        ("target: llvm-cpu", "target: llvm-cpu\nname: a b", "name: expected letters"),
        ("target: llvm-cpu", "target: *x", "x.yaml"),
        ("target: llvm-cpu", "target: {{", "x.yaml"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_rejected_with_its_name_and_key(before: str, after: str, reason: str):
    assert before in SHORT
    with pytest.raises(UsageError) as caught:
        read_tuning(save(SHORT.replace(before, after)))
    assert str(caught.value).startswith("x.yaml")
    assert reason in str(caught.value)


def test_a_wrong_key_has_a_suggestion():
    with pytest.raises(UsageError) as caught:
        read_tuning(save(SHORT + "evalutions: 5\n"))
    assert caught.value.hint.startswith("did you mean 'evaluations'?")


@pytest.mark.slow
@settings(max_examples=80, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.binary(max_size=6))
def test_a_file_damaged_at_random_is_read_or_rejected(tmp_path: Path, at: int, noise: bytes):
    """Never anything else."""
    data = tuning_text(TUNING).encode()
    path = tmp_path / "noise.yaml"
    at %= len(data)
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        read_tuning(path)
    except DispatchProfilerError as error:
        assert "noise.yaml" in str(error)


# -- folders ---------------------------------------------------------------------------------------


def test_the_files_of_a_folder_come_in_the_order_of_their_numbers():
    for number in (10, 2, 0):
        tuning = replace(TUNING, name=f"SSS_TN_{number}", operation=Matmul(number + 1, 4, 4))
        save(tuning_text(tuning), f"t/SSS_TN_{number}.yaml")
    save("configurations: []", "t/other.yaml")
    tunings, errors = read_tunings(Path("t"))
    assert ([each.name for each in tunings], errors) == (["SSS_TN_0", "SSS_TN_2", "SSS_TN_10"], ())
    assert read_tunings(Path("t/SSS_TN_2.yaml"))[0] == tunings[1:2]


def test_a_damaged_file_of_a_folder_affects_no_other():
    save(tuning_text(TUNING), "t/a.yaml")
    save(SHORT + "evaluations: none\n", "t/b.yaml")
    save("{", "t/c.yaml")
    tunings, errors = read_tunings(Path("t"))
    assert tunings == (TUNING,)
    assert [str(each).partition(":")[0].split()[0] for each in errors] == ["t/b.yaml", "t/c.yaml"]


def test_a_folder_without_tuning_files_is_an_error():
    save("configurations: []", "t/other.yaml")
    with pytest.raises(UsageError, match=r"^t has no tuning files$") as caught:
        read_tunings(Path("t"))
    assert "gen_configs" in caught.value.hint


@pytest.mark.parametrize(
    ("second", "same"),
    [(replace(TUNING, operation=Matmul(1, 2, 3)), "the name SSS_TN_0"), (replace(TUNING, name="B"), OPERATION.name)],
)  # fmt: skip
def test_two_files_for_the_same_problem_are_an_error(second: Tuning, same: str):
    save(tuning_text(TUNING), "t/a.yaml")
    save(tuning_text(second), "t/b.yaml")
    with pytest.raises(UsageError, match=f"t/a.yaml and t/b.yaml are both for {same}"):
        read_tunings(Path("t"))


LINE = "- {{function: matmul, M: 96, N: 80, K: 64, transA: {}, transB: {}, a_type: {}, b_type: {}, c_type: {}, d_type: {}, compute_type: {}}}\n"  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (("T", "N", "bf16_r", "bf16_r", "bf16_r", "bf16_r", "c_f32_r"), "BBS_TN"),
        (("T", "N", "f8_r", "f8_r", "bf16_r", "bf16_r", "c_f32_r"), "F8BS_TN"),
        (("N", "T", "f16_r", "f16_r", "f32_r", "f32_r", "c_f32_r"), "HSS_NT"),
        (("N", "N", "f32_r", "f32_r", "f32_r", "f32_r", "c_f32_r"), "SSS_NN"),
        (("T", "T", "f64_r", "f64_r", "f64_r", "f64_r", "c_f64_r"), "DDD_TT"),
        (("T", "N", "i8_r", "i8_r", "i32_r", "i32_r", "c_i32_r"), "I8II_TN"),
    ],
)
def test_a_call_in_a_log_is_named_as_in_the_document(fields, name):
    """From the fields of the line itself, through the row-major operation."""
    Path("log.yaml").write_text(LINE.format(*fields))
    (problem,) = problems_of(read_workload(Path("log.yaml")).workload)
    assert problem.name == f"{name}_0"


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (BatchMatmul(2, 4, 4, 4), "SSS_NN"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3), "CONV2D_SSS"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3, types=ElementTypes("f16", "f16", "f16")), "CONV2D_HHS"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3, mode="weight_backward"), "CONV2D_WEIGHT_BACKWARD_SSS"),
        (LayerNorm(3, 5), "LAYER_NORM_SSS"),
        (BiasBackward(3, 5, 7), "BIAS_BACKWARD_SSS"),
    ],
)
def test_other_operations_have_their_kind_in_front(operation: Operation, name: str):
    assert prefix(operation) == name


def test_problems_are_numbered_for_each_prefix_in_their_order():
    first, second, conv = Matmul(4, 4, 4), Matmul(8, 4, 4), Conv2d(1, 8, 8, 4, 4, 3, 3)
    workload = Workload((WorkloadEntry(first, 3, "a:1"), WorkloadEntry(conv), WorkloadEntry(second)))
    found = problems_of(workload)
    assert [each.name for each in found] == ["SSS_NN_0", "CONV2D_SSS_0", "SSS_NN_1"]
    assert (found[0].operation, found[0].count, found[0].origin) == (first, 3, "a:1")


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
def test_every_operation_has_a_name_that_is_a_file_name(operation: Operation):
    """And a word in a shell."""
    assert NAME.fullmatch(f"{prefix(operation)}_0")


def weighed(number: int, count: int, milliseconds: float | None) -> Weighed:
    problem = TuningProblem(f"SSS_NN_{number}", Matmul(number + 1, 4, 4), count, f'a "log", {number}')
    if milliseconds is None:
        return Weighed(problem, None, reason="no untuned configuration is correct (FAILED: x, y)")
    time = DefaultTime(milliseconds, 0.9 * milliseconds, 1.1 * milliseconds, "tile_config_default")
    return Weighed(problem, milliseconds, time)


#: 60 + 30 + 10 ms.
WORKLOAD = (weighed(0, 6, 10.0), weighed(1, 30, 1.0), weighed(2, 1, 10.0))


def test_a_share_is_count_times_time_of_the_whole():
    assert [each.percent for each in shares_of(WORKLOAD)] == [60.0, 30.0, 10.0]


@pytest.mark.parametrize(
    ("threshold", "kept"), [(0, [0, 1, 2]), (10, [0, 1, 2]), (10.1, [0, 1]), (30.1, [0]), (61, [])]
)
def test_problems_of_at_least_the_threshold_are_kept(threshold: float, kept: list[int]):
    shares = shares_of(WORKLOAD, threshold)
    assert [at for at, each in enumerate(shares) if each.is_kept] == kept
    reasons = {each.reason for each in shares if not each.is_kept}
    assert reasons <= {f"its share is below {threshold:g} %"}


def test_one_without_a_time_changes_no_other_share_and_is_not_kept():
    shares = shares_of((*WORKLOAD, weighed(3, 99, None)))
    assert [each.percent for each in shares] == [60.0, 30.0, 10.0, None]
    assert (shares[3].is_kept, shares[3].reason) == (False, weighed(3, 99, None).reason)


def test_nothing_but_unknown_times_gives_no_shares():
    assert [each.percent for each in shares_of([weighed(0, 1, None)])] == [None]
    assert shares_of([]) == ()


@pytest.mark.parametrize("weighed_by", [TIME, FLOPS])
def test_a_summary_is_read_back(weighed_by: str):
    shares = shares_of((*WORKLOAD, weighed(3, 99, None)), 20.0)
    Path("summary.csv").write_text(summary_text(shares, weighed_by))
    found = read_summary(Path("summary.csv"))
    assert [(each.problem, each.operation, each.count) for each in found] == [
        (each.problem.name, each.problem.operation.name, each.problem.count) for each in shares
    ]
    assert [each.percent for each in found] == [each.percent for each in shares]
    assert [each.milliseconds for each in found] == [10.0, 1.0, 10.0, None]
    assert [each.is_kept for each in found] == [True, True, False, False]
    assert {each.weighed_by for each in found} == {weighed_by}


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("problem,operation", "problem,name", "is not a summary: it has no column operation"),
        ("SSS_NN_1,", "SSS_NN_0,", "line 3: SSS_NN_0 is listed twice"),
        ("SSS_NN_1,", ",", "line 3: problem is missing"),
        (",30,", ",-3,", "line 3: count: expected a whole number, but got '-3'"),
        (",60.0,", ",nan,", "line 2: share(%): expected a number of at least 0, but got 'nan'"),
        (",60.0,", ",inf,", "line 2: share(%): expected a number of at least 0"),
        (",yes,", ",maybe,", "line 2: kept: expected yes or no, but got 'maybe'"),
        (",time,", ",mass,", "line 2: weighed_by: expected time or flops, but got 'mass'"),
    ],
)
def test_a_damaged_summary_is_rejected_with_its_line(before: str, after: str, reason: str):
    text = summary_text(shares_of(WORKLOAD), TIME)
    assert before in text
    Path("summary.csv").write_text(text.replace(before, after, 1))
    with pytest.raises(UsageError) as caught:
        read_summary(Path("summary.csv"))
    assert reason in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"problem", b"a,b\n" * 10])
def test_other_files_are_no_summaries(content: bytes):
    Path("summary.csv").write_bytes(content)
    with pytest.raises(UsageError, match=r"summary\.csv"):
        read_summary(Path("summary.csv"))


def test_a_line_with_too_few_values_is_rejected():
    text = summary_text(shares_of(WORKLOAD), TIME)
    Path("summary.csv").write_text(text + "SSS_NN_9,matmul\n")
    with pytest.raises(UsageError, match="line 5: count: expected a whole number"):
        read_summary(Path("summary.csv"))


# -- searches --------------------------------------------------------------------------------------


def searched(tunings: list[Tuning], overlap: bool = False) -> tuple[tuple[Searched, ...], list[Event]]:
    """The outcomes of searches on the null target, one after another on the same storage, and their events."""
    events: list[Event] = []
    options = SearchOptions(
        EvaluatorOptions("null", measure=MeasureOptions(StopRule(count=3), 1)),
        BuildOptions(workers=1),
        overlap=overlap,
    )
    with open_storage("search.log") as storage:
        found, _ = search_tunings(tunings, storage, options, listen=events.append)
    return found, events


def null_tuning(name: str, epilogue: str = "none", count: int = 1, m: int = 16, **options: object) -> Tuning:
    operation = Matmul(m, 32, 8, epilogue=Epilogue.parse(epilogue))
    usual = {"kinds": ("cpu_tiles",), "strategy": "exhaustive", "evaluations": 12, **options}
    return Tuning(name, operation, NullTarget("faults.yaml"), "null", count, **usual)


@pytest.mark.usefixtures("in_process")
def test_problems_that_differ_in_their_epilogues_are_searched_once():
    """The most frequent one is searched; the others have the default, a seed and its three fastest configurations."""
    plain, biased = null_tuning("PLAIN"), null_tuning("BIAS", "bias", count=5)
    relu, other = null_tuning("RELU", "bias+relu"), null_tuning("OTHER", "relu", m=32)
    fast = task_of(biased).seeds[1:4]
    times = {
        f"*_bias_{each.name}": {"time_ms": time} for each, time in zip(fast, (0.5, 0.4, 0.6), strict=True)
    }
    Path("faults.yaml").write_text(yaml.safe_dump({**times, "*": {"time_ms": 1.0}}, sort_keys=False))

    found, events = searched([plain, biased, relu, other])

    counts = {each.tuning.name: len(each.result.evaluations) for each in found if each.result}
    assert counts == {"PLAIN": 5, "BIAS": 12, "RELU": 5, "OTHER": 12}
    for each in (found[0], found[2]):
        assert each.result is not None
        evaluated = [one.configuration for one in each.result.evaluations]
        assert evaluated == [Default(), task_of(biased).seeds[0], fast[1], fast[0], fast[2]]
    following = [each for each in events if isinstance(each, Following)]
    announced = [
        (plain.operation, biased.operation, 5),
        (relu.operation, biased.operation, 5),
    ]
    # At the start, for the time left, and once the operation that they follow is searched.
    assert [(each.operation, each.leader, each.candidates) for each in following] == 2 * announced


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("overlap", [False, True])
def test_what_followers_need_is_evaluated_beside_the_first_round_of_the_others(overlap):
    """In rounds and in a pipeline; a search that is started again has nothing left to do."""
    Path("faults.yaml").write_text(yaml.safe_dump({"*": {"time_ms": 1.0}}))
    tunings = [null_tuning("PLAIN"), null_tuning("BIAS", "bias", count=5)]
    found, events = searched(tunings, overlap)
    again, events_again = searched(tunings, overlap)

    order = [each.evaluation.dispatch for each in events if isinstance(each, Evaluated)]
    plain = [at for at, each in enumerate(order) if each.operation == tunings[0].operation]
    assert len(order) == 17 and len(plain) == 5
    if not overlap:
        assert max(plain[:2]) < 10 and plain[2:] == [14, 15, 16]
    assert not [each for each in events_again if isinstance(each, Evaluated)]
    assert [each.result for each in again] == [each.result for each in found]


@pytest.mark.usefixtures("in_process")
def test_a_problem_without_a_verified_configuration_leads_no_other():
    """Then the other one is searched itself."""
    faults = {"*bias_*": {"fault": "wrong_element"}, "*": {"time_ms": 1.0}}
    Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))
    found, _ = searched([null_tuning("PLAIN"), null_tuning("BIAS", "bias", count=5)])
    counts = [len(each.result.evaluations) for each in found if each.result]
    assert counts == [12, 12] and [each.is_failure for each in found] == [False, True]


@pytest.mark.usefixtures("in_process")
def test_problems_that_are_searched_in_different_ways_do_not_follow_each_other():
    """Another strategy, budget or seed may find something else."""
    Path("faults.yaml").write_text(yaml.safe_dump({"*": {"time_ms": 1.0}}))
    _, events = searched(
        [
            null_tuning("PLAIN"),
            null_tuning("BIAS", "bias", evaluations=8),
            null_tuning("RELU", "relu", seed=1),
        ]
    )
    assert not [each for each in events if isinstance(each, Following)]
