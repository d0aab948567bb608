"""The cache of references: by content, whole or not at all, and never a wrong one."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Formed
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
    Reference,
)
from dispatch_profiler.operations.contraction.contraction import SumOfProducts
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.verification import verify
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import Expected, References, VerifiedHashes

OPERATION = Matmul(4, 6, 8)
BOTH = [Distribution.INTEGERS, Distribution.REALS]
TYPES = [
    ElementTypes("f64", "f64", "f64"),
    ElementTypes("f32", "f32", "f32"),
    ElementTypes("f16", "f16", "f16"),
    ElementTypes("bf16", "bf16", "bf16"),
    ElementTypes("f8E4M3FN", "f8E4M3FN", "f8E4M3FN"),
    ElementTypes("i8", "i8", "i32"),
]
SEED = 5


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """The operations whose references were computed, in order."""
    calls: list[Operation] = []

    whole = SumOfProducts.reference

    def counted(operation, operands, **options):
        calls.append(operation)
        return whole(operation, operands, **options)

    monkeypatch.setattr(SumOfProducts, "reference", counted)
    return calls


def fresh(folder: Path, operation: Operation = OPERATION, distribution: Distribution = BOTH[0]) -> Reference:
    """What a new process finds."""
    (only,) = References(folder, SEED).get(operation, distribution)
    return only


def truth(operation: Operation = OPERATION, distribution: Distribution = BOTH[0]) -> Reference:
    return reference(operation, draw(operation, distribution, SEED))


def same(a: Reference, b: Reference) -> bool:
    """Bit for bit, type for type."""
    if (a.tolerance is None) != (b.tolerance is None):
        return False
    pairs = [(a.expected, b.expected)] + ([] if a.tolerance is None else [(a.tolerance, b.tolerance)])
    return all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in pairs)


# -- hit and miss ----------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("types", TYPES, ids=lambda t: t.result)
def test_what_comes_from_disk_is_what_was_computed(tmp_path, computed, types, distribution):
    """Every type, bf16 and f8 among them, survives with its values, its type and its tolerance."""
    operation = Matmul(4, 6, 8, types)
    first, second = (fresh(tmp_path, operation, distribution) for _ in range(2))
    assert same(first, truth(operation, distribution)) and same(second, first)
    assert computed == [operation]


@pytest.mark.parametrize(
    "operation",
    [
        BatchMatmul(2, 3, 4, 5, epilogue=Epilogue.parse("bias+gelu")),
        Conv2d(1, 6, 6, 4, 4, 3, 3, groups=2, layout="nchw", types=TYPES[3]),
        Matmul(1, 1, 1),
    ],
    ids=lambda op: op.kind,
)
def test_every_kind_survives(tmp_path, operation):
    """Shapes of any rank come back."""
    for distribution in BOTH:
        fresh(tmp_path, operation, distribution)
        assert same(fresh(tmp_path, operation, distribution), truth(operation, distribution))


def test_the_last_operation_is_kept_in_memory(tmp_path, computed):
    """All configurations of an operation share its references, without a look at the disk."""
    cache = References(tmp_path, SEED)
    first = [cache.get(OPERATION, d) for d in BOTH]
    for distribution in BOTH:
        cache.path(OPERATION, distribution).unlink()
    assert [cache.get(OPERATION, d) for d in BOTH] == first
    assert len(computed) == 2


def test_operations_that_take_turns_are_kept_in_memory(computed):
    """A search evaluates rounds of several operations in turn, and has no folder."""
    cache, others = References(None, SEED), [Matmul(2, 2, n) for n in (2, 3, 4)]
    first = [cache.get(each, BOTH[0]) for each in others]
    assert [cache.get(each, BOTH[0]) for each in others] == first
    assert computed == others


def test_what_exceeds_the_memory_is_read_again(tmp_path, computed):
    """Memory holds the last operation, however large; the disk holds the others."""
    cache, other = References(tmp_path, SEED, kept_bytes=1), Matmul(2, 2, 2)
    first = cache.get(OPERATION, BOTH[0])
    cache.get(other, BOTH[0])
    again = cache.get(OPERATION, BOTH[0])
    assert again is not first and same(again[0], first[0])
    assert computed == [OPERATION, other]


def test_a_gpu_is_started_when_there_is_enough_work_for_it(monkeypatch):
    """Before, and for small operations always, numpy computes: starting torch takes seconds."""
    monkeypatch.setattr(verify, "LARGE_FLOPS", 2 * 8 * 8 * 8)
    monkeypatch.setattr(verify, "STARTING_FLOPS", 3 * 2 * 8 * 8 * 8)
    used: list[Operation] = []

    def contract(operation, lhs, rhs, dtype, *, of_magnitudes=False):
        used.append(operation)
        wide = lhs.astype(dtype), rhs.astype(dtype)
        return operation.contract(*map(np.abs, wide) if of_magnitudes else wide)

    cache = References(None, SEED, lambda: contract)
    large, small = [Matmul(8, 8, k) for k in (8, 9, 10, 11)], [Matmul(8, 8, k) for k in (4, 5, 6)]
    for each in (*small, *large, *small):
        assert same(cache.get(each, BOTH[0])[0], truth(each))
    assert used == large[2:]


def test_verified_results_of_operations_that_take_turns_are_known():
    hashes, expected = VerifiedHashes(), [Expected(Matmul(2, 2, n), BOTH[0]) for n in (2, 3)]
    for number in range(20):
        for each in expected:
            hashes.add(each, f"{number}")
    assert [hashes.of(each) for each in expected] == [frozenset(map(str, range(4, 20)))] * 2
    assert hashes.of(Expected(OPERATION, BOTH[0])) == frozenset()


# -- keys ------------------------------------------------------------------------------------------


def test_everything_that_decides_a_reference_is_in_its_key(tmp_path):
    """Another seed, operation or distribution is another file."""
    operations = [
        OPERATION,
        Matmul(6, 4, 8),
        Matmul(4, 6, 8, TYPES[2]),
        Matmul(4, 6, 8, lhs_layout="n"),
        Matmul(4, 6, 8, epilogue=Epilogue.parse("bias")),
        BatchMatmul(1, 4, 6, 8),
    ]
    paths = [References(tmp_path, s).path(o, d) for s in (1, 2) for o in operations for d in BOTH]
    assert len(set(paths)) == len(paths) == 24


def test_equal_operations_share_a_key(tmp_path):
    """The key is of the content: it is found again."""
    again = Matmul(4, 6, 8, ElementTypes("f32", "f32", "f32"))
    assert References(tmp_path, 1).path(OPERATION, BOTH[0]) == References(tmp_path, 1).path(again, BOTH[0])


@pytest.mark.parametrize(
    "module",
    [
        "operations.contraction.matmul",
        "operations._base",
        "operations.element_types",
        "operations.epilogue_steps",
        "operations.epilogues",
        "operations.contraction.contraction",
        "operations.contraction.reference",
        "operations.rounding",
        "profiler.verification.inputs",
    ],
)
def test_a_change_of_the_code_is_a_change_of_the_key(tmp_path, monkeypatch, module):
    """Each source that decides inputs or references, if edited, makes every old file stale."""
    code = sys.modules[f"dispatch_profiler.{module}"]
    before = References(tmp_path, 1).path(OPERATION, BOTH[0])
    edited = tmp_path / "edited.py"
    edited.write_text(Path(code.__file__).read_text() + "# another line\n")
    monkeypatch.setattr(code, "__file__", str(edited))
    verify.code_version.cache_clear()
    try:
        assert References(tmp_path, 1).path(OPERATION, BOTH[0]) != before
    finally:
        verify.code_version.cache_clear()


def test_the_code_of_another_kind_leaves_the_key_as_it_is(tmp_path, monkeypatch):
    """An edit of the convolution does not throw away matmuls."""
    code = sys.modules["dispatch_profiler.operations.convolution.convolution"]
    before = References(tmp_path, 1).path(OPERATION, BOTH[0])
    monkeypatch.setattr(code, "__file__", __file__)
    verify.code_version.cache_clear()
    assert References(tmp_path, 1).path(OPERATION, BOTH[0]) == before
    verify.code_version.cache_clear()


def test_a_form_with_its_own_bound_has_its_own_reference(tmp_path, monkeypatch):
    """In memory, on disk, and after an edit of the bound's source."""
    operation = Conv2d(1, 6, 6, 4, 4, 3, 3)
    bound = Formed("winograd").error_bound(operation)
    cache = References(tmp_path, SEED)
    assert cache.get(operation, BOTH[0])[0].tolerance is None
    assert cache.get(operation, BOTH[0], error_bound=bound)[0].tolerance is not None
    assert References(tmp_path, SEED).get(operation, BOTH[0], error_bound=bound)[0].tolerance is not None
    paths = [cache.path(operation, BOTH[0], error_bound=each) for each in (None, bound)]
    assert all(path.exists() for path in paths)
    monkeypatch.setattr(sys.modules[type(bound).__module__], "__file__", __file__)
    verify.code_version.cache_clear()
    try:
        changed = [cache.path(operation, BOTH[0], error_bound=each) for each in (None, bound)]
        assert changed[0] == paths[0]
        assert changed[1] != paths[1]
    finally:
        verify.code_version.cache_clear()


# -- damage ----------------------------------------------------------------------------------------


def written(folder: Path, distribution: Distribution = BOTH[0]) -> Path:
    """The file of a reference that was just computed."""
    fresh(folder, distribution=distribution)
    return References(folder, SEED).path(OPERATION, distribution)


def check_recovery(path: Path, folder: Path, distribution: Distribution = BOTH[0]) -> None:
    """What is got is right, and what lies on disk afterwards is whole: nothing is computed again."""
    right = truth(OPERATION, distribution)
    assert same(fresh(folder, distribution=distribution), right)
    with mock.patch.object(
        SumOfProducts, "reference", side_effect=AssertionError(f"{path} was not replaced")
    ):
        assert same(fresh(folder, distribution=distribution), right)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(data=st.data())
def test_a_damaged_file_never_gives_a_wrong_reference(tmp_path_factory, data):
    """Whatever bytes are overwritten, wherever: the reference is right, and nothing is raised."""
    folder = tmp_path_factory.mktemp("cache")
    distribution = data.draw(st.sampled_from(BOTH))
    path = written(folder, distribution)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=8))
    content[place : place + len(patch)] = patch
    path.write_bytes(content)
    check_recovery(path, folder, distribution)


@pytest.mark.parametrize("bit", [5, *(pytest.param(bit, marks=pytest.mark.slow) for bit in (0, 7))])
def test_no_single_byte_of_a_file_can_go_wrong_unnoticed(tmp_path, bit):
    """Each byte in turn, one bit flipped: the reference is right, and nothing is raised."""
    path, right = written(tmp_path), truth()
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        assert same(fresh(tmp_path), right), place


@pytest.mark.parametrize("kept", [0, 1, 4, 100, -200, -1])
def test_a_truncated_file_is_replaced(tmp_path, kept):
    """A file that was cut off anywhere is computed again."""
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    check_recovery(path, tmp_path)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"not a zip",
        b"PK\x03\x04",
        npy(np.zeros((4, 6), np.float32)),
        npz(),
        npz(expected0=np.zeros((4, 6), np.uint32), exact0=np.array(True)),
        npz(digest=np.array("0" * 64), expected0=np.zeros((4, 6), np.uint32), exact0=np.array(True)),
    ],
    ids=["text", "header only", "npy", "empty npz", "without digest", "wrong digest"],
)
def test_a_foreign_file_is_replaced(tmp_path, content):
    """What another program would have written is no reference."""
    path = written(tmp_path)
    path.write_bytes(content)
    check_recovery(path, tmp_path)


def test_the_reference_of_another_key_is_not_taken(tmp_path):
    """A whole file under the wrong name is as wrong as a damaged one."""
    path = written(tmp_path)
    other = References(tmp_path, SEED + 1)
    other.get(OPERATION, BOTH[0])
    path.write_bytes(other.path(OPERATION, BOTH[0]).read_bytes())
    check_recovery(path, tmp_path)


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path):
    """The reference is computed and used, whether it can be kept or not."""
    (tmp_path / "file").write_text("in the way")
    assert same(fresh(tmp_path / "file"), truth())


# -- no pickle -------------------------------------------------------------------------------------


class _Bomb:
    def __reduce__(self):
        return (Path("exploded").touch, ())


def test_a_pickle_is_never_opened(tmp_path):
    """A file of objects could run anything: it is replaced without being looked at."""
    path = written(tmp_path)
    objects = np.array([_Bomb()], dtype=object)
    for content in (npz(digest=objects, expected0=objects, exact0=objects), pickle.dumps(_Bomb())):
        path.write_bytes(content)
        check_recovery(path, tmp_path)
        assert not Path("exploded").exists()


def test_what_is_written_needs_no_pickle(tmp_path):
    """numpy reads the file with pickles forbidden, and finds no object in it."""
    for distribution in BOTH:
        with np.load(written(tmp_path, distribution), allow_pickle=False) as stored:
            assert all(stored[name].dtype.kind != "O" for name in stored.files)
