"""Killed or interrupted at any moment, compile.py loses what was in flight and nothing else."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from pathlib import Path

import pytest
from sweep_helpers import (
    TWO,
    EndedEarly,
    Ran,
    Sweep,
    assert_all_is_right,
    assert_nothing_twice,
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

from dispatch_profiler.dispatches import State

WORKERS = 2


@pytest.fixture
def seed() -> int:
    """Another one each time; DISPATCH_PROFILER_TEST_SEED repeats one."""
    seed = int(os.environ.get("DISPATCH_PROFILER_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"DISPATCH_PROFILER_TEST_SEED={seed}")
    return seed


def killed(kills: int, sweep: Sweep, seed: int, modules: int) -> list[Ran]:
    """Up to five runs that end with -9 after a random number of modules, and one that ends by itself."""
    draw = random.Random(seed)
    runs = []
    for _ in range(kills):
        # Five of at most a seventh, and what runs ahead of us: there is always something left.
        try:
            ran = sweep.stopped(draw.randint(1, modules // 7), signal.SIGKILL)
        except EndedEarly:
            break
        assert ran.status == -signal.SIGKILL
        sweep.wait_until_gone()
        runs.append(ran)
    final = sweep.run()
    assert final.status == 0, final.err
    sweep.wait_until_gone()
    return [*runs, final]


# -- kill -9 ---------------------------------------------------------------------------------------

THOUSAND = ("--problem-m=8:256:8", "--problem-n=16,32,64,128", "--problem-k=8", "--lhs=f32")
HUNDREDS = ("--problem-m=8:64:8", *THOUSAND[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "sweep", "count"),
    [(2, HUNDREDS, 256), pytest.param(5, THOUSAND, 1024, marks=pytest.mark.slow)],
    ids=["2", "5"],
)
def test_a_sweep_that_was_killed_is_the_sweep_that_was_not(generate, seed: int, kills, sweep, count):
    """Nothing finished is compiled twice, and all vmfbs are those of one calm run."""
    tree = generate("killed", *sweep)
    everything = modules_of(tree)
    assert len(list(load(tree).dispatches())) >= count

    runs = killed(kills, Sweep(tree, (f"-j{WORKERS}",)), seed, len(everything))

    assert_nothing_twice(runs)
    told = {module for ran in runs for module in ran.modules}
    assert told <= everything
    # Not told, though compiled: at most what was between the workers and the line at each kill.
    assert len(everything - told) <= kills * (WORKERS + 1)
    assert_all_is_right(tree)
    assert len(cache_entries(cache_folder())) == len(everything)

    calm = generate("calm", *sweep)
    assert Sweep(calm, (f"--cache-dir={calm}/cache",)).run().status == 0
    assert_same(vmfbs(tree), vmfbs(calm))


@pytest.mark.slow
def test_without_a_cache_finished_work_is_kept_too(generate, seed: int):
    tree = generate("killed", "--problem-m=8:256:8", "--problem-n=16,32", *THOUSAND[2:])

    runs = killed(5, Sweep(tree, (f"-j{WORKERS}", "--no-cache")), seed, len(modules_of(tree)))

    assert_all_is_right(tree)
    # The cache has which CPU to compile for, but no vmfbs.
    assert {each.name for each in cache_folder().iterdir()} <= {"cpus"}
    assert_nothing_twice(runs)


@pytest.mark.slow
def test_without_a_cache_the_end_is_right_even_if_work_is_lost(generate, seed: int):
    """Whatever is done twice: no vmfb of a killed run is taken for one that it is not."""
    tree = generate("killed", "--problem-m=8:64:8", "--problem-n=16,32", "--problem-k=8", "--lhs=f32")

    killed(5, Sweep(tree, (f"-j{WORKERS}", "--no-cache")), seed, len(modules_of(tree)))

    assert_all_is_right(tree)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_real_sweep_killed_five_times_is_the_sweep_that_was_not(generate, seed: int):
    """1,020 dispatches on this CPU; a quarter of the operations is compiled a second time, calmly."""
    sizes = [(i, j, k) for i in (1, 2) for j in (1, 2) for k in (1, 2, 4, 8)]
    rows = [f"  - {{distribution: [{8 * i}, {16 * j}], vector: [8, 16, {k}]}}" for i, j, k in sizes]
    Path("sixteen.yaml").write_text("\n".join(["configurations:", *rows]) + "\n")
    shapes = ("--problem-m=16:64:16", "--problem-n=32,64,96", "--problem-k=8:40:8", "--lhs=f32")
    arguments = (*shapes, "--configurations=sixteen.yaml")
    tree = generate("killed", *arguments, target="llvm-cpu")
    everything = modules_of(tree)
    assert len(list(load(tree).dispatches())) >= 1000

    runs = killed(5, Sweep(tree, (f"-j{WORKERS}",)), seed, len(everything))

    assert_nothing_twice(runs)
    told = {module for ran in runs for module in ran.modules}
    assert len(everything - told) <= 5 * (WORKERS + 1)
    assert_all_is_right(tree, iree_functions)

    calm = generate("calm", *arguments, target="llvm-cpu")
    names = sorted(operation for operation, _ in everything)
    chosen = random.Random(seed).sample(names, len(names) // 4)
    patterns = ",".join(f"{name}_*" for name in chosen)
    assert Sweep(calm, (f"--cache-dir={calm}/cache", f"--dispatches={patterns}")).run().status == 0
    again = vmfbs(calm)
    assert len(again) == 2 * len(chosen)
    assert_same({name: data for name, data in vmfbs(tree).items() if name in again}, again)


# Every change of a file that compile.py makes for one small tree is a moment to die at.


def _dies_and_goes_on(tree: Path, operation: int) -> bool:
    """False if the run ended before its `operation`th change of a file."""
    sweep = Sweep(tree, ("-j1",))
    killed = sweep.killed_at(operation)
    if killed.status == 0:
        return False
    assert killed.status == -signal.SIGKILL, killed.err
    sweep.wait_until_gone()

    final = sweep.run()

    assert final.status == 0, final.err
    assert_nothing_twice([killed, final])
    assert_all_is_right(tree)
    return True


@pytest.mark.slow
def test_it_goes_on_from_any_change_of_a_file(generate, seed: int):
    """Three of them here; the slow tests take them all."""
    died = []
    for operation in random.Random(seed).sample(range(1, 60), 3):
        shutil.rmtree(cache_folder(), ignore_errors=True)
        died.append(_dies_and_goes_on(generate(f"tree_{operation}"), operation))
    assert any(died)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_goes_on_from_every_change_of_a_file(generate):
    operation = 1
    while _dies_and_goes_on(generate(f"tree_{operation}"), operation):
        shutil.rmtree(cache_folder(), ignore_errors=True)
        operation += 1
    assert operation > 20


@pytest.mark.slow
def test_the_next_run_removes_the_temporary_files_of_a_killed_one(generate):
    """Killed between writing a file and giving it its name, in the tree and in the cache."""
    for number in (1, 2):  # the first renames: an entry of the cache, and what lies beside the source
        tree = generate("tree")
        Sweep(tree, ("-j1",)).killed_at(number, events="os.rename")
    assert leftovers(tree, cache_folder()) != []  # or the test does not test

    assert Sweep(tree).run("--force-compile").status == 0

    assert leftovers(tree, cache_folder()) == []


# -- Ctrl-C ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(False, id="the process", marks=pytest.mark.slow),
        pytest.param(True, id="its group, as a terminal does"),
    ],
)
def test_ctrl_c_keeps_what_was_told(generate, group: bool):
    """Without a cache: it is the manifest that remembers."""
    tree = generate("tree", "--problem-m=8:160:8", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    sweep = Sweep(tree, (f"-j{WORKERS}", "--no-cache"))
    everything = modules_of(tree)

    stopped = sweep.stopped(7, signal.SIGINT, group=group)

    assert stopped.status == 130
    last = stopped.err.splitlines()[-1]
    assert last == ("compile.py: interrupted; finished work is kept, and the next run continues from there")
    assert "Traceback" not in stopped.err
    sweep.wait_until_gone()
    compiled = {
        (e.operation.name, d.dispatch.configuration.module)
        for e, d in load(tree).dispatches()
        if d.state is State.COMPILED
    }
    assert set(stopped.modules) <= compiled < everything
    assert len(compiled - set(stopped.modules)) <= 1

    final = sweep.run()

    assert final.status == 0
    assert sorted(final.modules) == sorted(everything - compiled)
    assert_all_is_right(tree)


def test_ctrl_c_leaves_no_temporary_file(generate, run, monkeypatch: pytest.MonkeyPatch):
    """Pressed just when the file has been made: that is when Python tells of it."""
    tree = generate("tree")
    original, pressed = os.open, []

    def interrupted(path: str, flags: int, *more: object, **options: object) -> int:
        handle = original(path, flags, *more, **options)
        if flags & os.O_EXCL and str(path).endswith(".tmp") and not pressed:
            pressed.append(path)
            raise KeyboardInterrupt
        return handle

    monkeypatch.setattr(os, "open", interrupted)

    assert run("compile", "-j1", f"--generated-dir={tree}").status == 130
    assert leftovers(tree, cache_folder()) == []


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_the_real_compiler(generate):
    tree = generate(
        "tree", "--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32", target="llvm-cpu"
    )
    sweep = Sweep(tree, (f"-j{WORKERS}", "--no-cache"))

    stopped = sweep.stopped(1, signal.SIGINT, group=True)
    sweep.wait_until_gone()
    final = sweep.run()

    assert (stopped.status, final.status) == (130, 0)
    assert_nothing_twice([stopped, final])
    assert_all_is_right(tree, iree_functions)


# -- what is touched, and nothing else -------------------------------------------------------------

MINE = "configurations:\n  - {flow: data_tiling}\n  - {distribution: [8, 32], vector: [8, 16, 1]}\n"
ONE_MORE = MINE + "  - {distribution: [8, 32], vector: [8, 16, 2]}\n"


@pytest.fixture
def compiled(run, in_process):
    """`compiled(...)`: what compile.py really compiled, and its last line."""

    def call(*arguments: str) -> tuple[list[tuple[str, str]], str]:
        outcome = run("compile", "-j1", *arguments).checked()
        assert_all_is_right(Path())
        return sorted(modules_in(outcome.err)), outcome.err.splitlines()[-1]

    return call


@pytest.fixture
def two(generate, compiled) -> list[tuple[str, str]]:
    """Two operations of three modules each, all up to date, in the working folder."""
    generate(".", *TWO)
    done, _ = compiled()
    assert len(done) == 6
    return done


def edit_one_function() -> tuple[str, str]:
    """Another tile size for one function without flags of its own; (operation, its module)."""
    entry = load(Path()).entries[0]
    source = load(Path()).tree.source(entry.operation)
    text, count = re.subn(r"(?<=\[)(\d+), (\d+), (\d+)(?=\])", r"\1, \2, 7", source.read_text(), count=1)
    assert count == 1
    source.write_text(text)
    return entry.operation.name, ""


def test_an_edited_function_compiles_its_operation_alone(two, compiled):
    operation, module = edit_one_function()

    done, _ = compiled()

    assert (operation, module) in done
    assert {name for name, _ in done} == {operation}


def test_an_edited_function_compiles_its_module_alone(two, compiled):
    edited = edit_one_function()

    assert compiled()[0] == [edited]


def test_an_edit_that_is_taken_back_compiles_nothing(two, compiled):
    source = load(Path()).tree.source(load(Path()).entries[0].operation)
    text = source.read_text()
    edit_one_function()
    compiled()
    source.write_text(text)

    assert compiled()[0] == []


@pytest.mark.parametrize(
    "arguments", [("--batch-size=7",), ("--", "--iree-opt-level=O1")], ids=["batch", "flag"]
)
def test_what_all_are_built_with_compiles_all(two, compiled, arguments: tuple[str, ...]):
    assert compiled(*arguments)[0] == two
    # There and back: both are in the cache now.
    assert compiled()[0] == []
    assert compiled(*arguments)[0] == []


def test_another_compiler_compiles_all(generate, compiled):
    """The rules are the null compiler's revision; it comes back to the first one from the cache."""
    faults = Path("faults.yaml")
    faults.write_text('"*": {time_ms: 1}\n')
    generate(".", *TWO, target="null:faults.yaml")
    first, _ = compiled()

    faults.write_text('"*": {time_ms: 2}\n')
    second, _ = compiled()
    faults.write_text('# a remark changes nothing\n"*": {time_ms: 1}\n')
    third, _ = compiled()

    assert len(first) == 6
    assert (second, third) == (first, [])


def test_a_changed_compiler_does_not_find_what_the_old_one_failed_at(generate, run, compiled):
    """A failure is remembered for the compiler that failed, not for the next."""
    Path("faults.yaml").write_text('"*_data_tiling": {not_compiled: not yet}\n')
    generate(".", *TWO, target="null:faults.yaml")
    assert run("compile", "-j1").status == 1
    assert modules_in(run("compile", "-j1").err) == []

    Path("faults.yaml").write_text("{}\n")

    assert len(compiled()[0]) == 6


@pytest.fixture
def mine(generate, compiled) -> list[tuple[str, str]]:
    """The two operations with a list of configurations that leaves room for one more."""
    Path("mine.yaml").write_text(MINE)
    generate(".", *TWO, "--configurations=mine.yaml")
    done, _ = compiled()
    assert len(done) == 4
    Path("mine.yaml").write_text(ONE_MORE)
    return done


def test_another_configuration_compiles_its_module_alone(generate, mine, compiled):
    generate(".", *TWO, "--configurations=mine.yaml")

    assert compiled()[0] == [(name, module) for name, module in mine if not module]


def test_a_flow_that_is_dropped_leaves_no_vmfb(generate, mine, compiled):
    """`compiled` looks: every vmfb of the tree is named in the manifest."""
    Path("mine.yaml").write_text(MINE.replace("  - {flow: data_tiling}\n", ""))
    generate(".", *TWO, "--configurations=mine.yaml")

    compiled()

    assert not list(Path("generated").rglob("*data_tiling*"))


def test_another_configuration_leaves_other_operations_alone(generate, mine, compiled):
    """Given for the first operation only."""
    generate(".", "--problem-m=16", *TWO[1:], "--configurations=mine.yaml")

    done, _ = compiled()

    assert (mine[0][0], "") in done
    assert {name for name, _ in done} == {mine[0][0]}


def test_another_operation_is_compiled_alone(generate, two, compiled):
    generate(".", "--problem-m=48", *TWO[1:])

    done, last = compiled()

    assert {name for name, _ in done}.isdisjoint({name for name, _ in two})
    assert len(done) == 3
    assert "from the cache" not in last


def test_generating_the_same_again_compiles_nothing(generate, two, compiled):
    generate(".", *TWO)

    done, last = compiled()

    assert done == []
    assert "from the cache" not in last  # not even that


def test_a_file_that_was_only_touched_compiles_nothing(two, compiled):
    for path in Path("generated").rglob("*"):
        os.utime(path, (1, 1))

    done, last = compiled()

    assert done == []
    assert "from the cache" not in last


@pytest.mark.parametrize("purpose", ["verify", "profile"])
@pytest.mark.parametrize("damage", [None, b"", b"junk"], ids=["removed", "emptied", "overwritten"])
def test_a_damaged_vmfb_comes_from_the_cache_alone(two, compiled, purpose: str, damage: bytes | None):
    good = vmfbs(Path())
    victim = next(Path("generated").rglob(f"*_data_tiling_{purpose}.vmfb"))
    victim.unlink() if damage is None else victim.write_bytes(damage)
    others = {
        p: p.stat().st_mtime_ns for p in Path("generated").rglob("*.vmfb") if "data_tiling" not in p.name
    }

    done, last = compiled()

    assert done == []
    assert last.endswith(", 1 from the cache")
    assert_same(vmfbs(Path()), good)
    assert {p: p.stat().st_mtime_ns for p in others} == others


def test_a_vmfb_in_the_place_of_another_is_not_taken_for_it(two, compiled):
    """Valid, of the same operation, and wrong."""
    good = vmfbs(Path())
    profile = next(Path("generated").rglob("*_data_tiling_profile.vmfb"))
    shutil.copy(next(Path("generated").rglob("*_ukernels_profile.vmfb")), profile)

    compiled()

    assert_same(vmfbs(Path()), good)


@pytest.mark.slow
def test_what_the_compiler_said_of_a_kept_module_stays(generate, run):
    """Of two modules of one operation, one holds a tile that is refused; the other is made again."""
    refused = "  - {distribution: [64, 256], vector: [8, 16, 1], cache: [64, 256, 1]}\n"
    Path("mine.yaml").write_text(f"configurations:\n{refused}  - {{flow: data_tiling}}\n")
    shape = ("--problem-m=64", "--problem-n=256", "--problem-k=64", "--lhs=f32", "--configurations=mine.yaml")
    tree = generate("tree", *shape, target="llvm-cpu:x86-64-v3")
    arguments = ("-j1", f"--generated-dir={tree}")
    assert run("compile", *arguments).status == 1
    said = next(tree.rglob("iree_compile_cmd_stdout.mlir"))
    before = said.read_text()
    assert "large vector sizes" in before

    next(tree.rglob("*data_tiling_verify.vmfb")).unlink()
    run("compile", *arguments)

    assert said.read_text() == before
