"""`library export --format=c`: the code is compiled by a C compiler, and its results are compared with numpy."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from library_samples import HERE, entry

from dispatch_profiler.boo.interface import empty_aligned
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.configurations import Configuration, Default, Flow, Formed, Microkernel
from dispatch_profiler.library import Library
from dispatch_profiler.library.c_export import export_c, functions
from dispatch_profiler.library.cli import main
from dispatch_profiler.operations import (
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

#: They compile for the CPU.
pytestmark = pytest.mark.works_on_ir

CC = shutil.which("gcc") or shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler: gcc or cc on PATH")
WARNINGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
TARGET = parse_target("llvm-cpu")
HERE_NOW = replace(
    HERE,
    iree=f"compiler {compiler_for(TARGET).revision}, runtime 3.13.0",
    machine=replace(HERE.machine, threads=2, cpu_level=TARGET.level),
    flags=TARGET.compile_flags,
)
TILES = Microkernel((16, 64), (4, 1, 32))
PRODUCT = Matmul(32, 128, 48, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu"))
BF16 = Matmul(
    24, 64, 40, ElementTypes("bf16", "bf16", "bf16"), rhs_layout="n", epilogue=Epilogue.parse("relu")
)
#: Its default is three dispatches and a fill; its form packs the weight in several.
CONV = Conv2d(1, 8, 9, 16, 32, 3, 3, padding=(1, 1))
NORM = LayerNorm(24, 64)
#: Its exponential is the C library's.
F64 = Matmul(8, 32, 16, ElementTypes("f64", "f64", "f64"), epilogue=Epilogue.parse("silu"))
#: Its packed weight is a copy of the weight.
DEPTHWISE = Conv2d(1, 6, 7, 32, 32, 3, 3, padding=(1, 1), groups=32)
#: A step of a language model.
ROW = Matmul(1, 64, 48, BF16.types, rhs_layout="n")
KERNELS: list[tuple[Operation, Configuration]] = [
    (CONV, Default()),
    (PRODUCT, TILES),
    (PRODUCT, replace(TILES, packed=True)),
    (BF16, Default()),
    (BF16, Microkernel((12, 64), (4, 1, 32), packed=True)),
    (CONV, Formed("winograd", Default(), packed=True)),
    (NORM, Default()),
    (F64, Default()),
    (DEPTHWISE, Microkernel((2, 32), (1, 7, 32), unroll=1, packed=True)),
    (ROW, Microkernel((1, 64), (1, 1, 64), packed=True)),
]
THREADS = """
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
struct work { void (*body)(void *, size_t); void *argument; size_t count; atomic_size_t next; };
static void *take(void *pointer) {
  struct work *work = pointer;
  for (size_t at; (at = atomic_fetch_add(&work->next, 1)) < work->count;) work->body(work->argument, at);
  return NULL;
}
void threads_for(void *context, size_t count, void (*body)(void *, size_t), void *argument) {
  struct work work = {body, argument, count, 0};
  pthread_t threads[4];
  for (int at = 0; at < 4; ++at) pthread_create(&threads[at], NULL, take, &work);
  for (int at = 0; at < 4; ++at) pthread_join(threads[at], NULL);
  *(size_t *)context += count;
}
"""


def entries(kernels: list[tuple[Operation, Configuration]]) -> list:
    return [entry(operation, configuration=each, origin=HERE_NOW) for operation, each in kernels]


@dataclass(frozen=True)
class Exports:
    """The folder of all kernels, and the library that gcc makes of it."""

    folder: Path
    library: ctypes.CDLL


@pytest.fixture(scope="module")
def exports(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Exports:
    """Compiled by the first worker that needs them."""
    folder = made_once("exports", make_exports) / "kernels"
    return Exports(folder, ctypes.CDLL(str(folder / "libkernels.so")))


def make_exports(path: Path) -> None:
    folder = path / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    exported = export_c(entries(KERNELS), folder, origin="tuned")
    assert len(exported.kernels) == len(KERNELS) and not exported.left_out
    (folder / "threads.c").write_text(THREADS)
    assert CC is not None
    objects = sorted(folder.glob("*.o"))
    assert len(objects) == len(KERNELS)
    sources = [folder / "kernels.c", folder / "threads.c"]
    command = [CC, *WARNINGS, "-shared", "-fPIC", "-Wl,-z,defs", "-pthread", *sources, *objects, "-lm"]
    subprocess.run([*command, "-o", folder / "libkernels.so"], check=True)


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def memory(library: ctypes.CDLL, name: str) -> np.ndarray:
    """Memory of as many bytes as a function of the library returns; none without that function."""
    if not hasattr(library, name):
        return empty_aligned(0, np.uint8)
    size = getattr(library, name)
    size.restype = ctypes.c_size_t
    return np.asarray(empty_aligned(size(), np.uint8))


def call(library: ctypes.CDLL, name: str, arrays: list[np.ndarray], threads: ctypes.c_size_t | None) -> int:
    """Call a function, on four threads that add the number of calls to `threads`, or one call after another."""
    workspace = memory(library, f"{name}_workspace_bytes")
    passed = [pointer(each) for each in (*arrays, *([workspace] if workspace.size else []))]
    parallel = (
        (None, None)
        if threads is None
        else (ctypes.cast(library.threads_for, ctypes.c_void_p), ctypes.byref(threads))
    )
    return int(getattr(library, name)(*passed, *parallel))


@needs_cc
@pytest.mark.parametrize("is_threaded", [False, True], ids=["serial", "threads"])
@pytest.mark.parametrize(
    "distribution", [Distribution.INTEGERS, Distribution.REALS], ids=lambda each: each.value
)
@pytest.mark.parametrize(("operation", "configuration"), KERNELS, ids=lambda each: each.name)
def test_results_are_those_of_numpy(exports: Exports, operation, configuration, distribution, is_threaded):
    if distribution not in operation.distributions:
        pytest.skip("this operation is not exact on integers")
    rng = np.random.default_rng(7)
    operands = []
    for each in operation.operands:
        operands.append(empty_aligned(each.shape, each.type.dtype))
        operands[-1][...] = operation.draw(each, distribution, rng)
    results = [empty_aligned(each.shape, each.type.dtype) for each in operation.results]
    counted = ctypes.c_size_t(0) if is_threaded else None
    passed, name = list(operands), operation.name
    if configuration.packs_weight:
        packed = memory(exports.library, f"{name}_packed_bytes")
        assert call(exports.library, f"{name}_pack", [operands[1], packed], counted) == 0
        passed[1], name = packed, f"{name}_packed"
    assert call(exports.library, name, [*passed, *results], counted) == 0
    references = operation.reference(operands, error_bound=configuration.error_bound(operation))
    for result, reference in zip(results, references, strict=True):
        difference = np.abs(result.astype(np.float64) - reference.expected.astype(np.float64))
        assert np.all(difference <= (0 if reference.tolerance is None else reference.tolerance))
    assert counted is None or counted.value > 0


@needs_cc
def test_several_threads_call_one_kernel(exports: Exports):
    """Each with its own results and workspace. ctypes releases the interpreter's lock."""
    operands = [empty_aligned(each.shape, np.float32) for each in CONV.operands]
    for each in operands:
        each[...] = CONV.draw(CONV.operands[0], Distribution.INTEGERS, np.random.default_rng(7)).flat[0] + 2
    results = [empty_aligned(CONV.results[0].shape, np.float32) for _ in range(8)]

    def run(result: np.ndarray) -> list[int]:
        return [call(exports.library, CONV.name, [*operands, result], ctypes.c_size_t(0)) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(run, results))
    (reference,) = CONV.reference(operands)
    assert statuses == [[0] * 5] * 8
    assert all(np.array_equal(each, reference.expected) for each in results)


@needs_cc
def test_pointers_that_are_not_aligned_are_rejected(exports: Exports):
    function = getattr(exports.library, PRODUCT.name)
    array = empty_aligned(16, np.float32)
    aligned = pointer(array)
    for wrong in (None, pointer(array[1:])):
        assert function(aligned, aligned, aligned, wrong, aligned, None, None) == 1


@needs_cc
def test_objects_of_another_export_are_noticed(exports: Exports, tmp_path: Path):
    """The source looks up kernels by name, and compares what they take."""
    source = (exports.folder / "kernels.c").read_text().replace('_microkernel",', '_missing",')
    assert "_missing" in source
    for file in exports.folder.glob("*.[oh]"):
        shutil.copy(file, tmp_path)
    (tmp_path / "kernels.c").write_text(source)
    assert CC is not None
    shared = tmp_path / "other.so"
    subprocess.run(
        [CC, "-shared", "-fPIC", tmp_path / "kernels.c", *tmp_path.glob("*.o"), "-lm", "-o", shared],
        check=True,
    )
    library = ctypes.CDLL(str(shared))
    arrays = [empty_aligned(each.shape, np.float32) for each in (*PRODUCT.operands, *PRODUCT.results)]
    assert call(library, PRODUCT.name, arrays, None) == 2


@needs_cc
@pytest.mark.parametrize("sanitizer", [[], ["-fsanitize=address"]], ids=["plain", "address"])
def test_the_example_runs(exports: Exports, sanitizer, tmp_path: Path):
    """Ones, so that each pixel in the middle of an image sums up 9 taps of 16 channels; the first one has 4 taps."""
    assert CC is not None
    program = tmp_path / "example"
    sources = [exports.folder / "example.c", exports.folder / "kernels.c", *exports.folder.glob("*.o")]
    probe = [CC, *sanitizer, "-x", "c", "-", "-o", str(tmp_path / "probe")]
    if subprocess.run(probe, input=b"int main(void) { return 0; }", check=False).returncode:
        pytest.skip(f"{CC} has no {' '.join(sanitizer)}")
    subprocess.run([CC, *WARNINGS, *sanitizer, *sources, "-lm", "-o", program], check=True)
    # LeakSanitizer cannot run under ptrace, as in some containers.
    done = subprocess.run(
        [program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.stdout == "result[0] = 64\n"
    assert len((exports.folder / "example.c").read_text().splitlines()) < 50


@needs_cc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ on PATH")
def test_the_header_is_for_cpp_too(exports: Exports, tmp_path: Path):
    (tmp_path / "a.cpp").write_text('#include "kernels.h"\nint main() { return DP_OK; }\n')
    compiled = ["g++", "-Wall", "-Wextra", "-Werror", f"-I{exports.folder}"]
    subprocess.run([*compiled, tmp_path / "a.cpp", "-o", tmp_path / "a"], check=True)
    done = subprocess.run(
        [*compiled, "-x", "c++", "-c", exports.folder / "kernels.c", "-o", tmp_path / "b.o"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode and "compile this file as C11; its header is for C++, too" in done.stderr


@needs_cc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake on PATH")
def test_cmake_builds_a_static_library(exports: Exports, tmp_path: Path):
    for command in (["-S", exports.folder, "-B", tmp_path], ["--build", tmp_path]):
        subprocess.run(["cmake", *command], check=True, capture_output=True)
    assert (tmp_path / "libkernels.a").stat().st_size > 0
    done = subprocess.run([tmp_path / "kernels_example"], check=True, capture_output=True, text=True)
    assert done.stdout == "result[0] = 64\n"


def test_the_header_documents_every_pointer(exports: Exports):
    header = (exports.folder / "kernels.h").read_text()
    assert " * rhs: f32 [128][48], n x k\n" in header
    assert " * lhs: bf16 [24][40], m x k\n" in header
    assert " * rhs: f32 [3][3][16][32], hwcf\n" in header
    assert "const uint16_t *lhs" in header and "#define DP_ALIGNMENT 64" in header


#: The object of a request does not depend on the test that asks for it.
build_once = functools.cache(functions.build_static)


@pytest.fixture
def objects_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that several tests export are compiled for the first one."""
    monkeypatch.setattr(functions, "build_static", build_once)


def save(*kernels: tuple[Operation, Configuration], **origin: object) -> None:
    changed = replace(HERE_NOW, **origin)
    Library(replace(each, provenance=changed) for each in entries(list(kernels))).save(Path("tuned"))


def export(*arguments: str) -> int:
    return main(["export", "tuned", *arguments])


@pytest.mark.usefixtures("objects_once")
def test_one_operation_is_exported_by_name(capsys):
    save(*KERNELS)
    assert export("--format=c", f"--operation={NORM.name}", "-o", "norms") == 0
    names = {each.name for each in Path("norms").iterdir()}
    assert names == {
        *("norms.h", "norms.c", f"{NORM.name}.o", "CMakeLists.txt", "README.txt", "example.c", "export.json")
    }
    assert "Writing 1 kernel to norms" in capsys.readouterr().err


@pytest.mark.usefixtures("objects_once")
@pytest.mark.parametrize(
    ("folder", "name"),
    [("a-b.c", "a_b_c"), ("3x3", "kernels_3x3"), ("example", "kernels_example"), (".", None)],
)
def test_header_and_source_are_named_after_the_folder(folder, name):
    save((NORM, Default()))
    assert export("--format=c", "-o", folder) == 0
    (header,) = Path(folder).glob("*.h")
    assert header.stem == (name or re.sub(r"\W", "_", Path.cwd().name))
    assert f'#include "{header.name}"' in header.with_suffix(".c").read_text()
    assert f"add_library({header.stem} STATIC" in Path(folder, "CMakeLists.txt").read_text()


def test_an_unknown_operation_is_an_error_that_names_a_similar_one(capsys):
    save(*KERNELS)
    assert export("--format=c", f"--operation={NORM.name[:-1]}", "-o", "norms") == 2
    assert NORM.name in capsys.readouterr().err and not Path("norms").exists()


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        (
            {"target": "cuda:sm_80", "flags": ()},
            "it is for cuda:sm_80, and C exports are for CPUs: use --format=vmfb",
        ),
        (
            {"machine": replace(HERE_NOW.machine, cpu_level="x86-64-v4")},
            "for CPUs of the level x86-64-v4, but this machine has x86-64-v2",
        ),
        ({"iree": "compiler 3.12.0, runtime 3.12.0"}, "measured for llvm-cpu with compiler 3.12.0"),
    ],
    ids=["GPU", "CPU level", "compiler"],
)
def test_entries_of_other_machines_are_errors_with_the_reason(capsys, monkeypatch, origin, reason):
    if "machine" in origin:
        monkeypatch.setattr(type(TARGET), "level", "x86-64-v2")
    save((NORM, Default()), **origin)
    assert export("--format=c", "-o", "norms") == 2
    error = capsys.readouterr().err
    assert f"{NORM.name}: " in error and reason in error
    assert not Path("norms").exists()


@pytest.mark.usefixtures("objects_once")
def test_files_of_others_stay(capsys):
    save((NORM, Default()))
    Path("norms").mkdir()
    mine = Path("norms", "example.c")
    mine.write_text("mine")
    assert export("--format=c", "-o", "norms") == 2
    assert "example.c" in capsys.readouterr().err and [*Path("norms").iterdir()] == [mine]
    mine.rename(Path("norms", "mine.c"))
    assert export("--format=c", "-o", "norms") == 0
    # A second export replaces the files of the first one, and removes those that it lacks, but no others.
    save((replace(NORM, rows=8), Default()))
    assert export("--format=c", "-o", "norms") == 0
    assert Path("norms", "mine.c").read_text() == "mine" and not Path("norms", f"{NORM.name}.o").exists()
    Path("norms", "example.c").write_text("changed")
    assert export("--format=c", "-o", "norms") == 2
    assert Path("norms", "example.c").read_text() == "changed"


@pytest.mark.parametrize("output", ["missing/norms", "file"])
def test_the_folder_must_be_possible(capsys, output):
    Path("file").write_text("mine")
    save((NORM, Default()))
    assert export("--format=c", "-o", output) == 2
    assert "--output" in capsys.readouterr().err


def test_a_folder_is_required(capsys):
    save((NORM, Default()))
    assert export("--format=c") == 2
    assert "-o FOLDER" in capsys.readouterr().err


def test_micro_kernels_of_the_compiler_are_not_for_c(capsys):
    save((PRODUCT.without_epilogue, Flow("ukernels")))
    assert export("--format=c", "-o", "products") == 2
    assert "micro-kernels ask its runtime for the CPU's features" in capsys.readouterr().err


@pytest.mark.usefixtures("objects_once")
def test_what_is_left_out_is_named_beside_the_rest(capsys):
    every = entries([(NORM, Default()), (PRODUCT, Default())])
    foreign = replace(HERE_NOW, iree="compiler 3.12.0, runtime 3.12.0")
    Library([every[0], replace(every[1], provenance=foreign)]).save(Path("tuned"))
    assert export("--format=c", "-o", "norms") == 0
    assert f"{PRODUCT.name}" in capsys.readouterr().err
    assert f"{PRODUCT.name}: measured for" in Path("norms", "README.txt").read_text()


def test_a_vmfb_runs_with_the_line_of_its_readme():
    save((CONV, Default()), (PRODUCT, replace(TILES, packed=True)))
    assert export("--format=vmfb", "-o", "vmfbs") == 0
    text = Path("vmfbs", "README.txt").read_text()
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("iree-run-module")]
    assert len(lines) == 3
    tool = shutil.which(
        "iree-run-module", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    assert tool is not None
    results = [
        subprocess.run(
            line.replace("iree-run-module", tool, 1),
            shell=True,
            check=True,
            cwd="vmfbs",
            capture_output=True,
            text=True,
        ).stdout
        for line in lines
    ]
    assert "64 64" in results[0]
    # gelu of 48 ones and a bias of 1.
    assert "[49 49 " in results[2]
