"""Tables of shapes: CSV with a header, a row for each operation.

    m,n,k,type,count            a product, row major: m x k by k x n
    128,768,768,bf16,48

    n,h,w,c,k,r,s,stride,padding,layout
    1,56,56,64,64,3,3,1,1,nhwc  a convolution, in the letters of `Conv2d`

Headers are in the field's usual names, in any case and order. Commas, semicolons and tabs separate cells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import WorkloadError, nearest, short_repr
from dispatch_profiler.operations import KINDS, is_element_type, natural_result, read_layout
from dispatch_profiler.workloads.hipblaslt import is_effect, type_spelling
from dispatch_profiler.workloads.operation_fields import FieldProblem, fields_of, operation_of
from dispatch_profiler.workloads.workload_file import MOST_CALLS, WorkloadEntry

_DELIMITERS = ",;\t"
_NAME = re.compile(r"[A-Za-z_#][\w .()/%#-]{0,60}", re.ASCII)
#: Columns of logs of column-major products.
_STORAGE = ("transa", "transb", "trans_a", "trans_b", "lda", "ldb", "ldc", "ldd")
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
#: Numbers for the axes of a convolution: `2`, `2x1`.
_SIZES = re.compile(r"[0-9]{1,9}(?:x[0-9]{1,9}){0,2}", re.ASCII)
_PRODUCT_LAYOUTS = ("tt", "tn", "nt", "nn")
#: Names of types that are not this package's.
_TYPES = {"fp64": "f64", "fp32": "f32", "fp16": "f16", "fp8": "f8E4M3FN", "f8": "f8E4M3FN", "f8e4m3fn": "f8E4M3FN"} | {
    "fp8_e4m3": "f8E4M3FN", "fp8_e5m2": "f8E5M2", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2", "bf8": "f8E5M2",
    "f8e5m2": "f8E5M2",
} | {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32"
}  # fmt: skip
_MODES = {"fwd": "forward", "bwd": "input_backward", "dgrad": "input_backward", "wrw": "weight_backward"} | {
    "bwd_data": "input_backward", "bwd_weight": "weight_backward", "wgrad": "weight_backward"
}  # fmt: skip


def _aliases(text: str) -> dict[str, str]:
    """`m: rows_a; n: cols` -> {"m": "m", "rows_a": "m", "n": "n", "cols": "n"}."""
    found: dict[str, str] = {}
    for each in text.split(";"):
        field, _, names = each.strip().partition(":")
        found |= dict.fromkeys([field, *names.split()], field)
    return found


_OF_ALL = _aliases(
    "kind: operation op; type: dtype types data_type datatype precision; epilogue; count: calls call_count frequency freq;"
    "origin: name layer label source module"
)
_OF_TYPES = _aliases(
    "lhs: lhs_type a_type type_a; rhs: rhs_type b_type type_b; result: result_type out_type c_type d_type output_type"
)
_PRODUCT = _aliases(
    "m: size_m sizem; n: size_n sizen; k: size_k sizek; batch: b batch_count batches batch_size; lhs_layout: layout_a; rhs_layout: layout_b; layout"
)
_PER_AXIS = _aliases(
    "stride: strides; stride_d: sd conv_stride_d; stride_h: sh u conv_stride_h; stride_w: sw v conv_stride_w;"
    "padding: pad pads paddings; padding_d: pad_d pd; padding_h: pad_h ph p; padding_w: pad_w pw q;"
    "dilation: dilations; dilation_d: dd; dilation_h: dh l; dilation_w: dw j; groups: group g group_count;"
    "kernel: kernel_size filter filter_size window; layout; mode: direction pass"
)
_CONV = _aliases(
    "n: batch batchsize batch_size images; c: in_channels cin c_in ic channels; k: out_channels cout c_out oc filters;"
    "d: in_d depth input_d; h: in_h height ih hin h_in input_h input_height; w: in_w width iw win w_in input_w input_width;"
    "t: fil_d kernel_d filter_d kd; r: fil_h kernel_h filter_h kernel_height filter_height kh y;"
    "s: fil_w kernel_w filter_w kernel_width filter_width kw x"
)


@dataclass(frozen=True)
class _Family:
    """A family of operations that a header may describe: names -> fields, and the fields that it must have."""

    aliases: Mapping[str, str]
    needed: tuple[frozenset[str], ...]
    kinds: tuple[str, ...]


def _needs(*fields: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(each.split()) for each in fields)


_FAMILIES = (
    _Family(
        {name: name for kind in KINDS for name, _ in fields_of(kind)} | _PER_AXIS | _OF_TYPES | _OF_ALL,
        _needs("kind"),
        tuple(KINDS),
    ),
    _Family(_PRODUCT | _OF_TYPES | _OF_ALL, _needs("m n k"), ("matmul", "batch_matmul")),
    _Family(
        _CONV | _PER_AXIS | _OF_TYPES | _OF_ALL,
        _needs("n c k w s", "n c k w kernel"),
        ("conv1d", "conv2d", "conv3d"),
    ),
)
_AXES = {"conv1d": "w", "conv2d": "hw", "conv3d": "dhw"}
_TAPS = {"d": "t", "h": "r", "w": "s"}
#: What a table needs at least.
TABLE_HINT = "a product has m,n,k; a convolution n,h,w,c,k,r,s; docs/workloads.md lists all columns"


@dataclass(frozen=True)
class Table:
    """The header of a table: the fields of its columns, empty for columns that are ignored, and their names."""

    fields: tuple[str, ...]
    names: tuple[str, ...]
    delimiter: str

    @property
    def begins_with_text(self) -> bool:
        """Whether the first column has any text, such as a name."""
        return self.fields[0] in ("", "origin")

    def notes(self, file: str) -> Iterator[str]:
        """A remark about ignored columns."""
        ignored = [name for name, field in zip(self.names, self.fields, strict=True) if not field]
        if ignored:
            yield f"{file}: ignored {counted(len(ignored), 'column')}: {', '.join(ignored)}"

    def entry(self, line: str, origin: str) -> WorkloadEntry:
        """The operation of one row. Raises WorkloadError and OperationError."""
        cells = _cells(line, self.delimiter)
        # Spreadsheets write delimiters for empty cells at the end.
        if any(cells[len(self.fields) :]) or len(cells) < len(self.fields):
            raise WorkloadError(
                f"the row has {counted(len(cells), 'value')}, but the header has "
                f"{counted(len(self.fields), 'column')}"
            )
        row = {field: cell for field, cell in zip(self.fields, cells, strict=False) if field and cell}
        count = _whole("count", row.pop("count", "1"))
        if not 1 <= count <= MOST_CALLS:
            raise WorkloadError(f"count: expected a whole number from 1 to {MOST_CALLS}, but got {count}")
        name = row.pop("origin", "")
        found = operation_of(self._values(row))
        if isinstance(found, FieldProblem):
            raise WorkloadError(found.reason)
        return WorkloadEntry(found, count, f"{origin} {name}" if name else origin)

    def _values(self, row: dict[str, str]) -> dict[str, object]:
        """The fields of the operation of a row."""
        kind = row.pop("kind", "") or self._kind(row)
        if kind not in KINDS:
            return {"kind": kind}
        known = dict(fields_of(kind))
        values: dict[str, object] = {"kind": kind, **_types(row, known), **_layouts(row, known)}
        if kind in _AXES:
            values |= _per_axis(row, _AXES[kind])
        for name, text in row.items():
            if name not in known:
                raise WorkloadError(f"{name}={short_repr(text)[1:-1]}: a {kind} has no {name}")
            values[name] = _value(name, text)
        return values

    def _kind(self, row: dict[str, str]) -> str:
        """The kind of a row without a column for it: by its extents."""
        if "m" in self.fields:
            return "batch_matmul" if row.get("batch", "1") != "1" else _without_batch(row)
        if "d" in row:
            return "conv3d"
        return "conv2d" if "h" in self.fields else "conv1d"


def _without_batch(row: dict[str, str]) -> str:
    row.pop("batch", None)
    return "matmul"


def table_of(line: str, where: str) -> Table | None:
    """The table whose header `line` is, None if it is none. `where` is the file and the number of the line.

    Raises WorkloadError for a column whose name is misspelled, or that would change the result.
    """
    split = _split_header(line)
    if split is None:
        return None
    names, delimiter = split
    for family in _FAMILIES:
        fields = tuple(family.aliases.get(_folded(name), "") for name in names)
        if any(needed <= set(fields) for needed in family.needed):
            for name, field in zip(names, fields, strict=True):
                if not field:
                    _check_unknown(name, family, where)
            twice = next((field for field in fields if field and fields.count(field) > 1), "")
            if twice:
                same = [name for name, field in zip(names, fields, strict=True) if field == twice]
                raise WorkloadError(
                    f"{where}: the columns {', '.join(same)} mean the same", hint="remove one"
                )
            return Table(fields, names, delimiter)
    return None


def missing_header(line: str, *, is_table: bool = False) -> WorkloadError | None:
    """Why the first line of a file is no header, if it looks like one, or like a row; otherwise None.

    In a file that is a table by its name, any names look like a header; in others, two known ones do.
    """
    split = _split_header(line)
    if split is not None:
        names, _ = split
        known = {name: field for family in _FAMILIES[1:] for name, field in family.aliases.items()}
        is_almost = sum(_folded(name) in known for name in names) > 1
        if not (is_table or is_almost):
            return None
        for name in names if is_almost else ():
            if _folded(name) not in known and (near := nearest(_folded(name), known, cutoff=0.5)):
                hint = f"{name!r} may be {known[near]!r}; {TABLE_HINT}"
                return WorkloadError(f"the header {_listed(names)} names no operation", hint=hint)
        return WorkloadError(f"the header {_listed(names)} names no operation", hint=TABLE_HINT)
    cells = re.split(f"[{_DELIMITERS}]", line)
    if len(cells) > 2 and all(_WHOLE.fullmatch(cell.strip()) for cell in cells):
        return WorkloadError("the table has no header: the first line has numbers only", hint=TABLE_HINT)
    return None


def _listed(names: tuple[str, ...]) -> str:
    return ",".join(names)[:100]


def _split_header(line: str) -> tuple[tuple[str, ...], str] | None:
    """The names in a header and what separates them; None if a cell is no name."""
    delimiter = max(_DELIMITERS, key=line.count)
    if delimiter not in line or len(line) > 4000:
        return None
    try:
        names = tuple(_cells(line, delimiter))
    except WorkloadError:
        return None
    while names and not names[-1]:
        names = names[:-1]
    return (names, delimiter) if len(names) > 1 and all(map(_NAME.fullmatch, names)) else None


def _folded(name: str) -> str:
    return re.sub(r"[ .-]+", "_", name.strip().lower())


def _check_unknown(name: str, family: _Family, where: str) -> None:
    """Raise WorkloadError for an unknown column that must not be ignored."""
    folded = _folded(name)
    near = nearest(folded, family.aliases, cutoff=0.75) if len(folded) > 2 else ""
    if near:
        raise WorkloadError(
            f"{where}: unknown column {name!r}", hint=f"did you mean {family.aliases[near]!r}?"
        )
    is_other = any(folded in other.aliases for other in _FAMILIES)
    if is_other or is_effect(folded) or folded in _STORAGE:
        reason = f"does not apply to {' or '.join(family.kinds[:2])}" if is_other else "may change the result"
        raise WorkloadError(
            f"{where}: the column {name!r} {reason}",
            hint="remove it, or write the operations in a workload.yaml, which docs/workloads.md shows",
        )


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error as error:
        raise WorkloadError(f"not a row of CSV: {error}") from error


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        limit = " of at most 18 digits" if re.fullmatch("-?[0-9]+", text) else ""
        raise WorkloadError(f"{name}: expected a whole number{limit}, but got {short_repr(text)}")
    return int(text)


def _value(name: str, text: str) -> object:
    """The value of a field that is a number or a text."""
    if name in ("epilogue", "type", "layout", "lhs_layout", "rhs_layout", "mode"):
        return text
    if name == "affine":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if name in ("eps", "scale"):
        try:
            return float(text)
        except ValueError:
            raise WorkloadError(f"{name}: expected a number, but got {short_repr(text)}") from None
    return _whole(name, text)


def _types(row: dict[str, str], known: Mapping[str, bool]) -> dict[str, object]:
    """The types of an operation: one for all tensors, or one each."""
    given = row.pop("type", "")
    parts = [_type(part) for part in re.split(r"[/, ]+", given)] if given else []
    if "types" not in known:
        if parts and len(parts) != 1:
            raise WorkloadError(f"type: expected one type, but got {short_repr(given)}")
        return {"type": parts[0]} if parts else {}
    if len(parts) not in (0, 1, 3):
        raise WorkloadError(
            f"type: expected one type, or three such as bf16/bf16/f32, but got {short_repr(given)}"
        )
    each = {name: _type(row.pop(name)) for name in ("lhs", "rhs", "result") if name in row}
    if not parts and not each:
        return {}
    first = parts[0] if parts else each.get("lhs") or each.get("rhs") or each["result"]
    lhs, rhs, result = parts if len(parts) == 3 else (first, first, "")
    lhs = each.get("lhs", lhs)
    rhs = each.get("rhs", rhs)
    return {"types": [lhs, rhs, each.get("result") or result or _natural_result(lhs, rhs)]}


def _natural_result(lhs: str, rhs: str) -> str:
    return natural_result(lhs, rhs) if is_element_type(lhs) and is_element_type(rhs) else lhs


@lru_cache(maxsize=100)
def _type(text: str) -> str:
    """A type in this package's spelling: `fp16`, `half` and `f16_r` are f16."""
    folded = type_spelling(text).removesuffix("_r")
    return _TYPES.get(folded, folded)


def _layouts(row: dict[str, str], known: Mapping[str, bool]) -> dict[str, object]:
    """The layouts of an operation: `tn` of a product, a word or three layouts of a convolution."""
    found: dict[str, object] = {}
    if "layout" in known and "layout" in row:
        found["layout"] = read_layout(row.pop("layout"))
    elif layout := row.pop("layout", "").lower():
        if layout not in _PRODUCT_LAYOUTS:
            raise WorkloadError(
                f"layout: available: {', '.join(_PRODUCT_LAYOUTS)}, but got {short_repr(layout)}"
            )
        found |= {"lhs_layout": layout[0], "rhs_layout": layout[1]}
    for name in ("lhs_layout", "rhs_layout"):
        if name in row:
            found[name] = row.pop(name).lower()
    if "mode" in row:
        mode = row.pop("mode").lower()
        found["mode"] = _MODES.get(mode, mode)
    return found


def _per_axis(row: dict[str, str], axes: str) -> dict[str, object]:
    """Window, strides, padding and dilation of a convolution with these axes, one number for all or one each."""
    found: dict[str, object] = {}
    if "kernel" in row:
        sizes = _sizes("kernel", row.pop("kernel"), axes)
        found |= {_TAPS[axis]: size for axis, size in zip(axes, sizes, strict=True)}
    for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
        shared = _sizes(name, row.pop(name), axes) if name in row else [default] * len(axes)
        found[name] = [
            _whole(f"{name}_{axis}", row.pop(f"{name}_{axis}")) if f"{name}_{axis}" in row else size
            for axis, size in zip(axes, shared, strict=True)
        ]
    return found


def _sizes(name: str, text: str, axes: str) -> list[int]:
    folded = re.sub(r"[ ,()\[\]*]+", "x", text.lower()).strip("x")
    sizes = [int(each) for each in folded.split("x")] if _SIZES.fullmatch(folded) else []
    if len(sizes) not in (1, len(axes)):
        example = "x".join("2" * len(axes))
        raise WorkloadError(f"{name}: expected a number or {example}, but got {short_repr(text)}")
    return sizes * len(axes) if len(sizes) == 1 else sizes
