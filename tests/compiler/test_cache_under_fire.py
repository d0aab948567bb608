"""Many processes, damage of every kind, no room, no rights: the cache is slower, never wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_helpers import (
    COMPILE,
    ROOT,
    SMALL,
    TWO,
    Sweep,
    assert_all_is_right,
    assert_same,
    cache_entries,
    cache_folder,
    iree_functions,
    leftovers,
    load,
    modules_in,
    modules_of,
    vmfbs,
)

from dispatch_profiler.compiler import BuildOutcome, Built, Cache, CompileOptions, NullCompiler, compile_tree
from dispatch_profiler.dispatches import Selection, State
from dispatch_profiler.files.regular import sha256

#: Forks (importing 32 times over is what would take long), waits until all are there, lets them go.
_AT_ONCE = """
import os, sys
from dispatch_profiler.library.compile_cli import main
count, folder, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
there, go = os.pipe(), os.pipe()
children = []
for number in range(count):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(go[1])
        os.dup2(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT), 2)
        os.write(there[1], b".")
        os.read(go[0], 1)
        os._exit(main(arguments))
for _ in children:
    os.read(there[0], 1)
os.close(go[1])
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""
#: Calls a program with a limit on the size of every file, as on a full disk, and without root's
#: right to pass over permissions (PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH).
_RESTRICTED = """
import ctypes, os, resource, sys
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
if os.geteuid() == 0 and any(ctypes.CDLL(None).prctl(24, right, 0, 0, 0) for right in (1, 2)):
    sys.exit("cannot give up the rights of root")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def key_of(number: int) -> str:
    """As keys are: a SHA-256 in hexadecimal."""
    return sha256(f"key {number}".encode())


def built_of(number: int, size: int = 40) -> Built:
    """Another one for each number, `size` bytes of vmfb."""
    data = (f"{number:04d}" * size).encode()[:size]
    outcomes = {f"dispatch_{number}": BuildOutcome(State.COMPILED, applied=f"tiles {number}")}
    return Built(data[: size // 2], data[size // 2 :], outcomes, f"said of {number}")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """An empty folder at each call: an example of hypothesis must not find what another left."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


# -- many at once ----------------------------------------------------------------------------------


def compile_at_once(count: int, tree: Path, said: Path) -> None:
    """`count` processes that start to compile `tree` at the same moment; all of them succeed."""
    said.mkdir()
    command = [sys.executable, "-c", _AT_ONCE, str(count), str(said), f"--generated-dir={tree}", "-j1"]
    failed = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    words = {path.name: path.read_text() for path in said.iterdir()}
    assert (failed, len(words)) == (0, count), words


def assert_one_right_copy(tree: Path, again: Path) -> None:
    """One entry for each module, from which `again`, the same tree not compiled, comes to be the same."""
    assert len(cache_entries(cache_folder())) == len(modules_of(tree))
    assert leftovers(tree, cache_folder()) == []
    assert modules_in(Sweep(again).run().err) == []
    assert_same(vmfbs(again), vmfbs(tree))


@pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.slow) for count in (8, 32)])
def test_many_processes_leave_one_right_copy_of_each_entry(generate, tmp_path: Path, count: int):
    tree = generate("tree")

    compile_at_once(count, tree, tmp_path / "said")

    assert_all_is_right(tree)
    assert_one_right_copy(tree, generate("again"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_32_processes_with_the_real_compiler(generate, tmp_path: Path):
    shape = (*SMALL, "--default-config=only")
    tree = generate("tree", *shape, target="llvm-cpu")

    compile_at_once(32, tree, tmp_path / "said")

    assert_all_is_right(tree, iree_functions)
    assert_one_right_copy(tree, generate("again", *shape, target="llvm-cpu"))


@pytest.mark.usefixtures("in_process")
def test_two_that_compile_other_modules_of_one_operation_keep_both(generate):
    """Each writes what it did beside what the other did."""
    tree = generate("tree")
    manifest = load(tree)  # both have read it before either writes
    patterns = ("*tile_config*", "*data_tiling", "*ukernels")
    for pattern in patterns:
        list(compile_tree(manifest, NullCompiler(), CompileOptions(Selection.parse(pattern, ""))))

    assert_all_is_right(tree)


@pytest.mark.slow
def test_threads_that_read_write_evict_and_damage_get_what_is_right_or_nothing(tmp_path: Path):
    """Eight with a cache object each on one small folder, and one that writes junk."""
    folder, bound, wrong = tmp_path / "cache", 4000, []

    def use(seed: int) -> None:
        draw, cache = random.Random(seed), Cache(folder, bound)
        for _ in range(60):
            number = draw.randrange(20)
            try:
                if draw.random() < 0.5:
                    cache.put(key_of(number), built_of(number))
                elif draw.random() < 0.9:
                    got = cache.get(key_of(number))
                    if got not in (None, built_of(number)):
                        wrong.append(got)
                elif draw.random() < 0.5:
                    cache.info()
                else:
                    cache.clear()
            except BaseException as error:
                wrong.append(error)

    def damage() -> None:
        draw = random.Random(0)
        for _ in range(60):
            for path in draw.sample(found, 1) if (found := cache_entries(folder)) else []:
                path.write_bytes(draw.randbytes(30))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    threads.append(threading.Thread(target=damage))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert leftovers(folder) == []
    cache = Cache(folder, bound)
    cache.put(key_of(0), built_of(0))
    assert cache.info().bytes <= bound


# -- damage ----------------------------------------------------------------------------------------

COUNT = 4
PLACE = st.integers(0, COUNT - 1)
POSITION = st.floats(0, 1)
DAMAGE = st.one_of(
    st.tuples(st.just("overwrite"), PLACE, POSITION, st.binary(min_size=1, max_size=80)),
    st.tuples(st.just("truncate"), PLACE, POSITION),
    st.tuples(st.just("extend"), PLACE, st.binary(min_size=1, max_size=80)),
    st.tuples(st.just("insert"), PLACE, POSITION, st.binary(min_size=1, max_size=80)),
    st.tuples(st.just("cut out"), PLACE, POSITION, st.integers(1, 80)),
    st.tuples(st.just("replace"), PLACE, st.binary(max_size=400)),
    st.tuples(st.just("splice"), PLACE, POSITION, PLACE),
    st.tuples(st.just("remove"), PLACE),
)
many_examples = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def filled(folder: Path, count: int = COUNT) -> tuple[Cache, list[Path]]:
    """A cache with entries 0 ... count, and the file of each."""
    cache, paths = Cache(folder), []
    for number in range(count):
        before = set(cache_entries(folder))
        cache.put(key_of(number), built_of(number))
        (path,) = set(cache_entries(folder)) - before
        paths.append(path)
    return cache, paths


def do_damage(paths: list[Path], what: str, place: int, *how: Any) -> None:
    """See DAMAGE."""
    path = paths[place]
    data = path.read_bytes() if path.exists() else b""
    at = int(len(data) * how[0]) if how and isinstance(how[0], float) else 0
    other = paths[how[1]].read_bytes() if what == "splice" and paths[how[1]].exists() else b""
    damaged = {
        "overwrite": lambda: data[:at] + how[1] + data[at + len(how[1]) :],
        "truncate": lambda: data[:at],
        "extend": lambda: data + how[0],
        "insert": lambda: data[:at] + how[1] + data[at:],
        "cut out": lambda: data[:at] + data[at + how[1] :],
        "replace": lambda: how[0],
        "splice": lambda: data[:at] + other[at:],
        "remove": lambda: None,
    }[what]()
    if damaged is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(damaged)


@pytest.mark.slow
@many_examples
@given(damages=st.lists(DAMAGE, min_size=1, max_size=4))
def test_no_damage_reaches_a_user(fresh, damages: list[tuple]):
    """What is got is what was put, or nothing; then it is replaced by what is right."""
    folder = fresh()
    cache, paths = filled(folder)
    whole = [path.read_bytes() for path in paths]
    for damage in damages:
        # Another entry's content, whole, has a test of its own.
        if damage[0] != "splice" or damage[2] > 0.2:
            do_damage(paths, *damage)
    right = [path.exists() and path.read_bytes() == data for path, data in zip(paths, whole, strict=True)]

    got = [cache.get(key_of(number)) for number in range(COUNT)]

    assert got == [built_of(n) if is_right else None for n, is_right in enumerate(right)]
    for number in range(COUNT):
        cache.put(key_of(number), built_of(number))
    assert [cache.get(key_of(number)) for number in range(COUNT)] == [built_of(n) for n in range(COUNT)]
    assert leftovers(folder) == []


@pytest.mark.parametrize("how", ["copied", "swapped", "linked"])
def test_an_entry_under_the_name_of_another_is_a_miss(tmp_path: Path, how: str):
    """Whole and valid, but not what was asked for."""
    cache, (first, second, *_) = filled(tmp_path)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    if how == "swapped":
        second.write_bytes(one)
    elif how == "linked":
        first.unlink()
        first.symlink_to(second)

    assert cache.get(key_of(0)) is None
    assert cache.get(key_of(1)) == (None if how == "swapped" else built_of(1))


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_swapped_entries_never_become_vmfbs(generate, run):
    """Through compile.py: two operations whose entries have changed places."""
    tree = generate("tree", *TWO)
    Sweep(tree).run()
    paths = cache_entries(cache_folder())
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(data)

    again = generate("again", *TWO)
    run("compile", f"--generated-dir={again}").checked()
    assert_all_is_right(again)
    assert_same(vmfbs(again), vmfbs(tree))


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_every_entry_damaged_is_a_slower_run_with_the_same_vmfbs(generate, run):
    """Through compile.py: all is compiled again, and the cache is whole again."""
    tree = generate("tree", *TWO)
    Sweep(tree).run()
    for number, path in enumerate(cache_entries(cache_folder())):
        data = path.read_bytes()
        path.write_bytes([b"", data[:-1], data + b"\n", bytes(len(data)), data[::-1], b"junk"][number % 6])

    again = generate("again", *TWO)
    outcome = run("compile", f"--generated-dir={again}").checked()
    assert sorted(modules_in(outcome.err)) == sorted(modules_of(tree))
    assert_same(vmfbs(again), vmfbs(tree))
    third = generate("third", *TWO)
    assert modules_in(run("compile", f"--generated-dir={third}").err) == []


def _of_another_program(body: bytes) -> bytes:
    """What has the right sum, but is not ours: an older format, or a stroke of bad luck."""
    return sha256(body).encode() + body


def with_header(**wrong: object) -> bytes:
    """The body of an entry with some `wrong` fields in its header."""
    right = {
        "key": key_of(0),
        "verify": 1,
        "has_profile": True,
        "outcomes": {"f": ["compiled", "", "", ""]},
        "diagnostics": "",
    }
    header = json.dumps({**right, **wrong}).encode()
    return b"%016d" % len(header) + header + b"vp"


WRONG_HEADERS: list[dict[str, object]] = [
    {"verify": -1},
    {"verify": 3},
    {"verify": 10**400},
    {"verify": "1"},
    {"outcomes": []},
    {"outcomes": {"f": ["compiled"]}},
    {"outcomes": {"f": ["compiled", 1, "", ""]}},
    {"outcomes": {"f": ["unheard of", "", "", ""]}},
    {"has_profile": 1},
    {"diagnostics": None},
]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"junk",
        b"0" * 15 + b"2{}",
        b"0" * 15 + b"4null",
        b"0" * 15 + b"2[]",
        b"9" * 16,
        b"%016d" % 10**5 + b"[" * 10**5,
        *(with_header(**wrong) for wrong in WRONG_HEADERS),
    ],
    ids=["empty", "junk", "no keys", "null", "list", "length", "deep", *map(str, WRONG_HEADERS)],
)
def test_an_entry_with_a_right_sum_and_a_strange_body_is_a_miss(tmp_path: Path, body: bytes):
    cache, (path, *_) = filled(tmp_path)
    path.write_bytes(_of_another_program(body))

    assert cache.get(key_of(0)) is None
    cache.put(key_of(0), built_of(0))
    assert cache.get(key_of(0)) == built_of(0)


def test_a_folder_in_the_place_of_an_entry_is_a_miss(tmp_path: Path):
    cache, (path, *_) = filled(tmp_path)
    path.unlink()
    (path / "below").mkdir(parents=True)

    assert cache.get(key_of(0)) is None
    cache.put(key_of(0), built_of(0))
    assert cache.get(key_of(0)) in (None, built_of(0))
    assert [cache.get(key_of(n)) for n in range(1, COUNT)] == [built_of(n) for n in range(1, COUNT)]
    assert leftovers(tmp_path) == []


def test_a_folder_in_the_place_of_an_entry_does_not_stop_clearing_and_evicting(tmp_path: Path):
    _, paths = filled(tmp_path)
    paths[0].unlink()
    paths[0].mkdir()
    os.utime(paths[0], (1, 1))  # the first to go
    bound = 2 * paths[1].stat().st_size

    Cache(tmp_path, bound).put(key_of(9), built_of(9))
    assert sum(p.stat().st_size for p in cache_entries(tmp_path) if p.is_file()) <= bound
    Cache(tmp_path).clear()
    assert [p for p in cache_entries(tmp_path) if p.is_file()] == []


@pytest.mark.timeout(60)
def test_named_pipes_in_the_places_of_its_files_do_not_hang_the_cache(tmp_path: Path):
    """That of an entry, that of its size, that of its lock, and one among unfinished files."""
    cache, (path, *_) = filled(tmp_path)
    places = (path, tmp_path / "size", tmp_path / ".lock", tmp_path / "unfinished" / ".x.tmp")
    for place in places:
        place.unlink(missing_ok=True)
        os.mkfifo(place)

    assert cache.get(key_of(0)) is None
    os.mkfifo(path)
    cache.put(key_of(0), built_of(0))
    assert cache.get(key_of(0)) == built_of(0)
    assert [cache.get(key_of(n)) for n in range(1, COUNT)] == [built_of(n) for n in range(1, COUNT)]
    assert cache.info().entries == COUNT


def test_a_link_that_leads_nowhere_is_a_miss_and_is_replaced(tmp_path: Path):
    cache, (path, *_) = filled(tmp_path)
    path.unlink()
    path.symlink_to("nowhere")

    assert cache.get(key_of(0)) is None
    cache.put(key_of(0), built_of(0))
    assert cache.get(key_of(0)) == built_of(0)


# -- least recently used ---------------------------------------------------------------------------


def settle_times(folder: Path, tick: int) -> None:
    """What was used since the last call was used at `tick`: the order does not depend on the clock."""
    for path in cache_entries(folder):
        if path.stat().st_mtime > 10**8:
            os.utime(path, (tick, tick))


USE = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 7), st.integers(0, 300)),
    st.tuples(st.just("get"), st.integers(0, 7), st.just(0)),
)


@pytest.mark.slow
@many_examples
@given(uses=st.lists(USE, max_size=20), bound=st.integers(0, 2500))
def test_what_stays_is_what_was_used_last(fresh, uses: list[tuple[str, int, int]], bound: int):
    """Against the plainest model there is; the bound holds after every single put."""
    folder = fresh()
    cache = Cache(folder, bound)
    model: OrderedDict[int, tuple[int, int]] = OrderedDict()  # number -> (size of vmfbs, of the entry)
    for tick, (use, number, size) in enumerate(uses):
        if use == "put":
            cache.put(key_of(number), built_of(number, size))
            coming = _entry_size(fresh(), number, size)
            if coming <= bound:
                model.pop(number, None)
                while sum(whole for _, whole in model.values()) + coming > bound:
                    model.popitem(last=False)
                model[number] = (size, coming)
        else:
            wanted = built_of(number, model[number][0]) if number in model else None
            assert cache.get(key_of(number)) == wanted
            if number in model:
                model.move_to_end(number)
        settle_times(folder, tick)
        assert cache.info().bytes == sum(whole for _, whole in model.values()) <= bound
        assert cache.info().entries == len(model)


def _entry_size(folder: Path, number: int, size: int) -> int:
    Cache(folder).put(key_of(number), built_of(number, size))
    return cache_entries(folder)[0].stat().st_size


def test_a_larger_bound_is_not_needed_to_read_what_is_there(tmp_path: Path):
    """Reading evicts nothing: a user with a smaller bound does not empty the cache by looking."""
    filled(tmp_path)

    assert Cache(tmp_path, max_bytes=0).get(key_of(0)) == built_of(0)
    assert len(cache_entries(tmp_path)) == COUNT


def test_an_entry_that_is_larger_than_the_cache_costs_no_other(tmp_path: Path):
    _, paths = filled(tmp_path)
    cache = Cache(tmp_path, sum(path.stat().st_size for path in paths))

    cache.put(key_of(9), built_of(9, 10_000))

    assert [cache.get(key_of(n)) for n in range(COUNT)] == [built_of(n) for n in range(COUNT)]


def test_putting_again_does_not_count_twice(tmp_path: Path):
    _, (path, *_) = filled(tmp_path, 1)
    cache = Cache(tmp_path, path.stat().st_size)

    for _ in range(3):
        cache.put(key_of(0), built_of(0))

    assert cache.get(key_of(0)) == built_of(0)
    assert cache.info().entries == 1


def test_what_killed_processes_left_counts_as_well(tmp_path: Path):
    """Half-written files of long ago are bytes on the disk too."""
    _, (path, *_) = filled(tmp_path)
    for number in range(5):
        lost = tmp_path / "unfinished" / f".{path.name[:40]}.{number}.tmp"
        lost.parent.mkdir(exist_ok=True)
        lost.write_bytes(bytes(1000))
        os.utime(lost, (1, 1))

    Cache(tmp_path, 2000).put(key_of(9), built_of(9))

    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 2000


# -- no room, no rights, no folder -----------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("what", ["below a file", "link to nowhere", "link to itself"])
def test_a_cache_that_is_no_folder_costs_only_time(generate, run, what: str):
    tree = generate("tree")
    place = Path("cache")
    if what == "link to nowhere":
        place.symlink_to("missing/folder")
    elif what == "link to itself":
        place.symlink_to("cache")
    else:
        place.write_text("mine")
    folder = place / "below" if what == "below a file" else place

    for _ in range(2):
        run("compile", f"--generated-dir={tree}", f"--cache-dir={folder}", "--force-compile").checked()
        assert_all_is_right(tree)
    assert run("compile", f"--cache-dir={folder}", "--cache-info").status in (0, 1)
    assert "file" not in what or place.read_text() == "mine"


def restricted(tree: Path, *arguments: str, limit: int = 0) -> subprocess.CompletedProcess[str]:
    """compile.py with less room or fewer rights; see `_RESTRICTED`."""
    command = [
        sys.executable,
        "-c",
        _RESTRICTED,
        str(limit),
        str(COMPILE),
        f"--generated-dir={tree}",
        *arguments,
    ]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    if "cannot give up the rights of root" in done.stderr:
        pytest.skip("root cannot give up its rights here")
    return done


@pytest.mark.slow
def test_no_room_for_the_cache_costs_only_time(generate):
    """No file may grow beyond the largest of the tree; an entry of the cache is larger than that."""
    rows = [
        f"  - {{distribution: [{8 * i}, 32], vector: [8, 16, {k}]}}" for i in (1, 2) for k in (1, 2, 4, 8)
    ]
    Path("eight.yaml").write_text("\n".join(["configurations:", *rows]) + "\n")
    shape = (*SMALL, "--configurations=eight.yaml")
    roomy, tree = generate("roomy", *shape), generate("tree", *shape)
    assert restricted(roomy).returncode == 0
    (entry,) = cache_entries(cache_folder())
    limit = max(p.stat().st_size for p in [*roomy.rglob("*.vmfb"), *roomy.rglob("manifest.json")]) + 10
    assert limit < entry.stat().st_size  # or the test does not test
    shutil.rmtree(cache_folder())

    for _ in range(2):
        outcome = restricted(tree, "--force-compile", limit=limit)
        assert outcome.returncode == 0, outcome.stderr

    assert cache_entries(cache_folder()) == []
    assert leftovers(tree, cache_folder()) == []
    assert_all_is_right(tree)
    assert_same(vmfbs(tree), vmfbs(roomy))


@pytest.fixture
def cached(generate, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A compiled tree, whose cache can be read and written again when the test is done."""
    tree = generate("tree")
    assert Sweep(tree).run().status == 0
    yield tree, cache_folder()
    for path in [cache_folder(), *cache_folder().glob("??")]:
        path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["folders", *(pytest.param(each, marks=pytest.mark.slow) for each in ("entries", "the cache"))]
)
def test_what_may_not_be_read_costs_only_time(generate, cached, what: str):
    tree, cache = cached
    again = generate("again")
    for path in {"entries": cache_entries(cache), "folders": cache.glob("??"), "the cache": [cache]}[what]:
        path.chmod(0)

    outcome = restricted(again)
    told = restricted(again, "--cache-info")

    assert outcome.returncode == 0, outcome.stderr
    assert sorted(modules_in(outcome.stderr)) == sorted(modules_of(tree))
    assert_same(vmfbs(again), vmfbs(tree))
    assert "Traceback" not in told.stderr


@pytest.mark.slow
def test_a_cache_that_can_only_be_read_is_read(generate, cached):
    """One that an administrator filled for all: what it holds is used, what it lacks is compiled."""
    tree, cache = cached
    before = cache_entries(cache)
    again = generate("again", *TWO)
    for path in cache_entries(cache):
        path.chmod(0o444)
    for path in [*cache.glob("??"), cache]:
        path.chmod(0o555)

    outcome = restricted(again)

    assert outcome.returncode == 0, outcome.stderr
    assert set(modules_in(outcome.stderr)) == modules_of(again) - modules_of(tree)
    assert_all_is_right(again)
    assert cache_entries(cache) == before


@pytest.mark.slow
def test_damage_that_cannot_be_removed_is_still_a_miss(generate, cached):
    tree, cache = cached
    again = generate("again")
    for path in cache_entries(cache):
        path.write_bytes(b"junk")
    for path in cache.glob("??"):
        path.chmod(0o555)

    outcome = restricted(again)

    assert outcome.returncode == 0, outcome.stderr
    assert sorted(modules_in(outcome.stderr)) == sorted(modules_of(again))
    assert_same(vmfbs(again), vmfbs(tree))
