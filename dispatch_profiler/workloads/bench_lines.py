"""The other forms of a log of products: command lines of `hipblaslt-bench` and `rocblas-bench`, and CSV, as fields.

Both give the field names of the YAML form (see `hipblaslt`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UnsupportedFeature, WorkloadError, nearest
from dispatch_profiler.workloads.hipblaslt import field_name, type_spelling
from dispatch_profiler.workloads.rocblas import FUNCTION, rocblas_fields

#: Names in command lines and CSV -> fields of the YAML form.
_RENAMED = {
    **{name: letter for letter in "MNK" for name in (letter.lower(), f"size{letter.lower()}")},
    **{"f": "function", "r": "precision", "batch": "batch_count"},
    **{f"transpose{operand.lower()}": f"trans{operand}" for operand in "AB"},
}
_NEGATIVE = re.compile(r"-\.?\d.*")
#: What ends a command in a script: redirections, pipes, and the next command.
_SHELL = re.compile(r"\s(?:[0-9]?>|[|&;<#])")
_FUNCTION = re.compile(r"\s(?:-f|--function)[\s=]+(\w+)")
_REQUIRED_COLUMNS = {"transA", "transB", "M", "N", "K"}
#: hipblaslt-bench numbers its rows: `[0]:transA,transB,...`.
_ROW_NUMBER = re.compile(r"\s*\[\d+\]:")

#: Options of both programs that set how they measure, verify, search and print.
_IGNORED = frozenset(
    [
        "HMM",
        "adaptive",
        "algo",
        "algo_method",
        "any_stride",
        "api",
        "api_method",
        "atomics_allowed",
        "atomics_not_allowed",
        "c_equal_d",
        "cold_iters",
        "device",
        "dump_matrix",
        "flush",
        "flush_batch_count",
        "flush_memory_size",
        "fortran",
        "function_filter",
        "i",
        "init",
        "initialization",
        "iters",
        "j",
        "log_datatype",
        "log_function_name",
        "max_iters",
        "max_measure_time",
        "measure_time",
        "min_iters",
        "name_filter",
        "noise_threshold",
        "norm_check",
        "outofplace",
        "parallel_devices",
        "print_kernel_info",
        "print_solution_found",
        "requested_solution",
        "requested_solution_num",
        "rotating",
        "sample_time",
        "skip_slow_solution_ratio",
        "solution_index",
        "splitk",
        "stability_interval",
        "stability_threshold",
        "stability_window",
        "t",
        "test",
        "timing",
        "unit_check",
        "use_ext",
        "use_ext_setproblem",
        "use_gpu_timer",
        "use_user_args",
        "v",
        "verify",
        "warmup_time",
        "wgm",
        "workspace",
        "activation_arg1",
        "activation_arg2",
        "aux_type",
        "lde",
        "stride_e",
    ]
)
#: Options of both programs that are read, by their fields.
_COMMON = frozenset(
    [
        "function",
        "precision",
        "M",
        "N",
        "K",
        "lda",
        "ldb",
        "ldc",
        "ldd",
        "stride_a",
        "stride_b",
        "stride_c",
        "stride_d",
        "alpha",
        "beta",
        "transA",
        "transB",
        "batch_count",
        "a_type",
        "b_type",
        "c_type",
        "d_type",
        "compute_type",
    ]
)
_OF_HIPBLASLT = frozenset(
    [
        "compute_input_typeA",
        "compute_input_typeB",
        "scale_type",
        "bias_type",
        "bias_source",
        "bias_vector",
        "scaleA",
        "scaleB",
        "scaleC",
        "scaleD",
        "scaleAlpha_vector",
        "amaxScaleA",
        "amaxScaleB",
        "amaxD",
        "use_e",
        "gradient",
        "swizzleA",
        "swizzleB",
        "grouped_gemm",
        "batch_mode",
        "activation_type",
    ]
)
_OF_ROCBLAS = frozenset(("flags", "alphai", "betai", "composite_compute_type"))


@dataclass(frozen=True)
class _BenchProgram:
    """A benchmark program: its name, its type if none is given, and the fields of its options that are read."""

    name: str
    precision: str
    read: frozenset[str]


_PROGRAMS = (
    _BenchProgram("hipblaslt-bench", "f16_r", _COMMON | _OF_HIPBLASLT),
    _BenchProgram("rocblas-bench", "f32_r", _COMMON | _OF_ROCBLAS),
)
#: The extents of both programs.
_EXTENT = "128"


def bench_program(line: str) -> str:
    """The benchmark program whose command line `line` is; empty if it is none."""
    return next((program.name for program in _PROGRAMS if program.name in line), "")


def bench_fields(line: str) -> dict[str, str]:
    """`hipblaslt-bench -m 768 --transA T --bias_vector ...` -> {"M": "768", "transA": "T", "bias_vector": "true"}.

    Options that are not given have the program's defaults. Raises WorkloadError for a malformed line, and
    UnsupportedFeature for an option that is unknown, because it may change the result.
    """
    program = next(program for program in _PROGRAMS if program.name in line)
    command = line.partition(program.name)[2].removeprefix(".exe").removeprefix('"').removeprefix("'")
    command = _SHELL.split(f" {command}", maxsplit=1)[0]
    if program.name == "rocblas-bench":
        _check_function(command)
    options = _options(program, command.split()).items()
    given = {name: value for name, value in options if value.casefold() != "default"}
    precision = type_spelling(given.pop("precision", "")) or program.precision
    extents = dict.fromkeys("MNK", _EXTENT)
    defaults = {**{f"{operand}_type": precision for operand in "abcd"}, "transA": "N", "transB": "N"}
    if program.name == "rocblas-bench":
        return _of_rocblas({**extents, "compute_type": precision, **defaults, **given}, precision)
    return {**extents, "batch_count": "1", "compute_type": "f32_r", **defaults, **given}


def _options(program: _BenchProgram, words: list[str]) -> dict[str, str]:
    """The options of a command line that are read, by their fields; "true" for an option without a value."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or not word.lstrip("-"):
            raise WorkloadError(f"expected an option of {program.name}, but got {word[:40]!r}")
        name, _, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "-"
        if not value and (not following.startswith("-") or _NEGATIVE.fullmatch(following)):
            value = following
            at += 1
        at += 1
        field = _renamed(name)
        if field in program.read:
            fields[field] = value or "true"
        elif name not in _IGNORED and field not in _IGNORED:
            raise _unknown(program, word)
    return fields


def _unknown(program: _BenchProgram, word: str) -> UnsupportedFeature:
    name = word.partition("=")[0]
    near = nearest(name.lstrip("-"), sorted(program.read | _IGNORED), cutoff=0.75)
    hint = f"; did you mean --{near}?" if near else ""
    return UnsupportedFeature(
        f"{name[:40]}: an unknown option of {program.name}, which may change the result{hint}"
    )


def _check_function(command: str) -> None:
    """Raise UnsupportedFeature for a function of rocBLAS that is no product, whatever its options."""
    match = _FUNCTION.search(command)
    if match and not match[1].startswith("gemm"):
        rocblas_fields({FUNCTION: f"rocblas_{match[1]}"})


def _of_rocblas(fields: Mapping[str, str], precision: str) -> dict[str, str]:
    """The fields of a command line of rocblas-bench, whose functions `gemm` have the type of the precision."""
    function = fields.get("function", "")
    if not function:
        raise WorkloadError("expected a function, such as -f gemm_ex")
    letters = {"f16_r": "h", "f32_r": "s", "f64_r": "d", "f32_c": "c", "f64_c": "z"}
    has_letter = function.startswith("gemm") and "_ex" not in function
    letter = letters.get(precision, precision[:1]) if has_letter else ""
    return rocblas_fields({**fields, FUNCTION: f"rocblas_{letter}{function}"})


def csv_columns(line: str) -> tuple[str, ...]:
    """The fields that the header of a CSV log names; empty if `line` is no such header."""
    if "," not in line:
        return ()
    columns = tuple(_renamed(name) for name in _values(line))
    return columns if set(columns) >= _REQUIRED_COLUMNS else ()


def check_types(columns: tuple[str, ...], where: str) -> None:
    """Raise WorkloadError unless the columns of a log have the types; `where` is the file and line of the header."""
    types = {"a_type", "b_type", "d_type"}
    missing = sorted(
        ({"compute_type"} if "precision" in columns else types | {"compute_type"}) - set(columns)
    )
    if missing:
        raise WorkloadError(
            f"{where}: a table with transA and transB is a log of column-major products, and needs the columns "
            f"{', '.join(missing)}",
            hint="row-major products have the columns m,n,k,type,layout, and no transA and transB",
        )


def csv_fields(line: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The fields of a row; empty cells are left out. A column `precision` has the types without columns."""
    values = _values(line)
    if len(values) != len(columns):
        raise WorkloadError(
            f"the row has {counted(len(values), 'value')}, but the header has {counted(len(columns), 'column')}"
        )
    fields = {name: value for name, value in zip(columns, values, strict=True) if value}
    if precision := fields.pop("precision", ""):
        types = {f"{operand}_type": precision for operand in "abcd"}
        fields = {**types, **fields}
    return fields


def _values(line: str) -> list[str]:
    try:
        return [value.strip() for value in next(csv.reader([_ROW_NUMBER.sub("", line)]), [])]
    except csv.Error as error:
        raise WorkloadError(f"not a row of CSV: {error}") from error


def _renamed(name: str) -> str:
    name = name.strip()
    return _RENAMED.get(name.lower(), field_name(name))
