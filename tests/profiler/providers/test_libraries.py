"""Libraries: they compute what the operation says, in every kind, layout, type and epilogue."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from epilogue_helpers import SEQUENCES, SIMPLE, STEP_TEXTS
from pairwise import parametrize_pairwise

from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import (
    KINDS,
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers import threads
from dispatch_profiler.profiler.providers.library_calls import LIBRARIES, library_method, open_library
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result
from dispatch_profiler.runtime import RunError
from dispatch_profiler.runtime.caches import last_level_cache_bytes

FLOATS = ("f64", "f32", "f16", "bf16", "f8E4M3FN")
ACCURACY = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8E4M3FN": 4}
#: Every pair of input and result type that an operation may have.
TYPES = [("i8", "i32")] + [
    (given, result)
    for given, result in product(FLOATS, FLOATS)
    if ACCURACY[result] <= max(ACCURACY[given], 24)
]
EPILOGUES = [*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES[::3]))]
CONVOLUTIONS = {
    "dense": {"n": 2, "h": 7, "w": 9, "c": 5, "k": 6, "r": 3, "s": 2},
    "one_by_one": {"n": 1, "h": 5, "w": 4, "c": 8, "k": 3, "r": 1, "s": 1},
    "strided": {"n": 2, "h": 9, "w": 8, "c": 4, "k": 4, "r": 3, "s": 3, "stride": (2, 3), "padding": (1, 2)},
    "dilated": {
        "n": 1,
        "h": 11,
        "w": 10,
        "c": 3,
        "k": 5,
        "r": 3,
        "s": 2,
        "dilation": (2, 3),
        "padding": (2, 0),
    },
    "grouped": {"n": 2, "h": 6, "w": 6, "c": 6, "k": 4, "r": 3, "s": 3, "groups": 2, "padding": (1, 1)},
    "depthwise": {"n": 2, "h": 6, "w": 7, "c": 5, "k": 5, "r": 3, "s": 3, "groups": 5, "stride": (2, 1)},
    "multiplier": {"n": 1, "h": 6, "w": 7, "c": 3, "k": 6, "r": 2, "s": 3, "groups": 3},
}
PROBLEMS = [
    *(f"{kind}-{lhs}{rhs}" for kind in ("matmul", "batch_matmul") for lhs, rhs in product("tn", "tn")),
    *(f"conv2d-{layout}-{name}" for layout in ("nhwc", "nchw") for name in CONVOLUTIONS),
]


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest):
    """Each library that this Python has."""
    pytest.importorskip(request.param)
    return open_library(request.param, "local-task", 1)


def bound(library, operation, inputs):
    """A call on these inputs, at one place."""
    return library.load(b"").bind("", library.put(operation, inputs))


def built(problem: str, types: ElementTypes, epilogue: Epilogue) -> Operation | None:
    """The operation; None if it does not exist."""
    kind, *rest = problem.split("-")
    if types.output.is_integer and not all(step.is_on_integers for step in epilogue.steps):
        return None
    if kind == "conv2d":
        return Conv2d(**CONVOLUTIONS[rest[1]], layout=rest[0], types=types, epilogue=epilogue)
    layouts = {"lhs_layout": rest[0][0], "rhs_layout": rest[0][1], "types": types, "epilogue": epilogue}
    return Matmul(5, 7, 9, **layouts) if kind == "matmul" else BatchMatmul(3, 5, 7, 9, **layouts)


@parametrize_pairwise(
    ("name", "problem", "given", "result"),
    [(name, problem, *types) for name in ("numpy", "torch") for problem in PROBLEMS for types in TYPES],
)
def test_a_library_computes_what_the_operation_says_or_refuses(name, problem, given, result):
    """Exactly on small whole numbers where one rounding is all there is, and within the bound on reals."""
    pytest.importorskip(name)
    library = open_library(name, "local-task", 1)
    for epilogue in EPILOGUES:
        operation = built(problem, ElementTypes(given, given, result), epilogue)
        if operation is None:
            continue
        for distribution in Distribution:
            inputs = draw(operation, distribution, 5)
            try:
                found = bound(library, operation, inputs).run()[0]
            except NotSupported as error:
                assert given in str(error)
                continue
            expected = reference(operation, inputs, stepwise=True)
            comparison = compare_result(operation.result, found, expected)
            assert comparison.passed, f"{operation.name} on {distribution.value}: {comparison.message}"


def test_torch_keeps_the_operands_of_an_epilogue_in_the_type_of_the_sums():
    """A bias in f32 of f16 operands loses no bits; of f64 sums that are stored as f32, it gains some."""
    pytest.importorskip("torch")
    library = open_library("torch", "local-task", 1)
    for given, result, held in (("f16", "f32", "float32"), ("f64", "f32", "float64"), ("i8", "i32", "int32")):
        operation = Matmul(
            4, 5, 6, ElementTypes(given, given, result), epilogue=Epilogue.parse("bias+residual")
        )
        handles = library.put(operation, draw(operation, Distribution.INTEGERS, 1)).handles
        assert [str(each.dtype) for each in handles[2:4]] == [f"torch.{held}"] * 2


def test_every_type_that_has_a_blas_is_computed(library):
    """Refusing is no way out: these are what a library is there for."""
    narrow = ("f16", "bf16") if "torch" in library.version else ()
    for given in ("f32", "f64", *narrow):
        for problem in PROBLEMS:
            operation = built(problem, ElementTypes(given, given, given), Epilogue.parse("bias+relu"))
            bound(library, operation, draw(operation, Distribution.INTEGERS, 1)).run()[0]


def test_numpy_refuses_what_it_has_no_blas_for():
    """Its own loops would take ages, and be no measure of this CPU."""
    for given, result in (("f16", "f16"), ("bf16", "f32"), ("i8", "i32"), ("f8E4M3FN", "f32")):
        operation = Matmul(4, 5, 6, types=ElementTypes(given, given, result))
        with pytest.raises(NotSupported, match=f"numpy has no BLAS for {given}"):
            bound(open_library("numpy", "local-task", 1), operation, draw(operation, Distribution.REALS, 1))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_inputs_are_left_as_they_were_and_a_second_run_is_the_same(library, problem):
    """An epilogue in place works on the result, and never on an operand."""
    operation = built(problem, ElementTypes(), Epilogue.parse("bias+gelu"))
    inputs = draw(operation, Distribution.REALS, 3)
    before = [array.copy() for array in inputs]
    call = bound(library, operation, inputs)
    first = call.run()[0]
    assert call.time(3) > 0
    np.testing.assert_array_equal(call.run()[0], first)
    for array, was in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, was)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_an_element_that_is_not_written_shows(name, write_nothing):
    """The memory of a product's result holds no number before a run."""
    pytest.importorskip(name)
    operation = Matmul(4, 5, 6)
    library = open_library(name, "local-task", 1)
    operands = library.put(operation, draw(operation, Distribution.REALS, 1))
    write_nothing()
    assert np.isnan(library.bind("", operands).run()[0]).all()


def test_each_call_takes_the_next_operands(library):
    """All places hold the result in the end, and what is returned is that of the first."""
    operation = Matmul(4, 5, 6, epilogue=Epilogue.parse("bias+relu"))
    inputs = draw(operation, Distribution.INTEGERS, 1)
    places = [library.put(operation, inputs) for _ in range(3)]
    expected = reference(operation, inputs).expected
    library.bind("", *places).time(2)
    written = [bool((np.asarray(place.handles[-1]) == expected).all()) for place in places]
    assert written == [True, True, False]
    np.testing.assert_array_equal(library.bind("", *places).run()[0], expected)
    assert library.cache_bytes == last_level_cache_bytes()


def test_every_kind_of_operation_has_a_method_in_both_libraries():
    """torch-prepacked is for weights."""
    lacking = {name: {kind for kind in KINDS if not library_method(name, kind)} for name in LIBRARIES}
    assert lacking == {
        "numpy": set(),
        "torch": set(),
        "torch-prepacked": set(KINDS) - {"matmul", "conv2d", "conv3d"},
    }


def test_a_library_names_its_version_and_what_computes():
    """As its own package says it is called."""
    assert open_library("numpy", "local-task", 1).version.startswith(f"numpy {np.__version__} (")


def test_torch_names_its_version_and_what_computes():
    """oneDNN, and MKL where it has that."""
    torch = pytest.importorskip("torch")
    version = open_library("torch", "local-task", 1).version
    assert version.startswith(f"torch {torch.__version__} (") and version.endswith(")")


def test_torch_has_as_many_threads_as_it_is_told():
    """Those of IREE."""
    torch = pytest.importorskip("torch")
    open_library("torch", "local-task", 1)
    assert torch.get_num_threads() == 1
    open_library("torch", "local-task", 2)
    assert torch.get_num_threads() == 2


def test_f32_is_f32():
    """No TF32: it has 11 bits, and the operation says 24."""
    torch = pytest.importorskip("torch")
    open_library("torch", "local-task", 1)
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("device", ["cuda", "cuda://1", "vulkan", "hip", "metal"])
def test_numpy_is_no_match_for_a_gpu(device):
    """One sentence, before anything runs."""
    with pytest.raises(UsageError, match=f"numpy runs on the CPU, but the device is {device}"):
        open_library("numpy", device, 1)


@pytest.mark.parametrize("device", ["vulkan", "metal", "amd-aie"])
def test_torch_runs_on_no_device_of_another_kind(device):
    """It has no kernels for it."""
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=f"torch does not support the device {device}"):
        open_library("torch", device, 1)


@pytest.mark.parametrize(("device", "build"), [("cuda", "cuda"), ("cuda://0", "cuda"), ("hip", "hip")])
def test_a_torch_for_the_cpu_does_not_run_on_a_gpu(device, build, monkeypatch):
    """What to install is in the hint."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, build, None)
    with pytest.raises(UsageError, match=f"was built without {build}, but the device is {device}") as error:
        open_library("torch", device, 1)
    assert "install the build of PyTorch" in error.value.hint


def test_without_torch_the_pip_line_is_told(monkeypatch):
    """Also before the first use."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "dispatch_profiler.profiler.providers.torch_library", raising=False)
    with pytest.raises(MissingDependency, match="torch") as error:
        open_library("torch", "local-task", 1)
    assert "pip install" in error.value.hint


def test_an_error_of_torch_is_no_refusal(monkeypatch):
    """Only what it does not have is; all else breaks the dispatch."""
    torch = pytest.importorskip("torch")
    library = open_library("torch", "local-task", 1)
    operation = Conv2d(1, 4, 4, 2, 2, 3, 3)
    inputs = draw(operation, Distribution.REALS, 1)
    for error, refused in (
        (RuntimeError("an illegal memory access was encountered"), False),
        (RuntimeError("\"conv\" not implemented for 'Half'"), True),
        (RuntimeError("self.size(0) needs to be greater than 16, but got 4"), True),
        (NotImplementedError("Could not run 'aten::mm.dtype'"), True),
    ):

        def broken(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(torch, "conv2d", broken)
        with pytest.raises(RunError, match="torch: ") as raised:
            bound(library, operation, inputs).run()[0]
        assert isinstance(raised.value, NotSupported) is refused


# -- threads ---------------------------------------------------------------------------------------


def test_threads_are_those_of_the_device():
    """`local-sync` has one."""
    assert threads.iree_threads("local-sync") == 1
    assert threads.iree_threads("local-task") == usable_threads()
    assert set(threads.environment(3).values()) == {"3"}


@pytest.mark.parametrize(
    ("busy", "steps"),
    [
        ([], 10),
        ([1.9, 0.3, 0.06], 13),
        ([1.9, 0.0, 0.0, 1.9], 14),
        ([0.04] * 20, 10),
        ([1.0] + 9 * [0.0] + [1.0], 21),
        ([1.0] * 10_000, None),
    ],
)
def test_a_process_sleeps_when_it_has_been_quiet_for_a_while(monkeypatch, busy, steps):
    """`busy` is what part of a core it uses in each step; it is not waited for without end."""
    state = {"now": 0.0, "used": 0.0, "steps": 0}

    def sleep(seconds: float) -> None:
        part = busy[state["steps"]] if state["steps"] < len(busy) else 0.0
        state["now"] += seconds
        state["used"] += part * seconds
        state["steps"] += 1

    clock = SimpleNamespace(
        sleep=sleep, perf_counter=lambda: state["now"], process_time=lambda: state["used"]
    )
    monkeypatch.setattr(threads, "time", clock)
    assert threads.wait_until_asleep() is (steps is not None)
    assert state["steps"] == (steps or 400)


def test_importing_the_profiler_does_not_import_torch():
    """It is optional, and takes seconds."""
    code = "import sys, dispatch_profiler.profiler.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
