"""IREE tuning specs: transform dialect libraries that configure the operations of any module.

They work with `iree-compile --iree-codegen-tuning-spec-path=spec.mlir`. A spec tells operations apart by their
loops, indexing maps and element types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Inserts the loop over images into a convolution of one image, from which the compiler has folded it away. The compiler
#: runs this pass only after it has applied specs, which would then not match, so a spec has to run it itself.
_INSERT_BATCH = "iree-codegen-insert-batch-dim-for-batchless-conv"
_HANDLE = "!transform.any_op"
_RESULTS = {
    "contraction": ("batch", "m", "n", "k"),
    "convolution": ("batch", "out_img", "out_ch", "filter", "in_ch", "depth", "strides", "dilations"),
}


@dataclass(frozen=True)
class Matcher:
    """An operation as a spec recognizes it.

    `kind` is contraction or convolution, `dimensions` has the extents of each result of that matcher: for a
    contraction: batch, m, n and k.
    """

    kind: str
    element_types: tuple[str, str, str]
    indexing_maps: tuple[str, ...]
    dimensions: tuple[tuple[int, ...], ...]

    @property
    def is_batchless(self) -> bool:
        """True for a convolution of one image."""
        return self.kind == "convolution" and self.dimensions[0] == (1,)

    def text(self) -> str:
        """The body of a matcher sequence for `%op`, without its end."""
        names = _RESULTS[self.kind]
        lhs, rhs, output = self.element_types
        lines = [
            f"{', '.join(f'%{name}' for name in names)} = transform.iree.match.{self.kind} %op, "
            f"lhs_type = {lhs}, rhs_type = {rhs}, output_type = {output}, "
            f"indexing_maps = [{', '.join(self.indexing_maps)}] : {_HANDLE} -> !transform.param<i64>"
        ]
        lines += [
            f"transform.iree.match.dims_equal %{name}, {list(extents)} : !transform.param<i64>"
            for name, extents in zip(names, self.dimensions, strict=True)
        ]
        return "\n".join(f"    {line}" for line in lines)


@dataclass(frozen=True)
class SpecEntry:
    """The configuration that a spec sets on the operations that `matcher` recognizes. `name` is for readers."""

    name: str
    matcher: Matcher
    compilation_info: str


def spec_text(entries: Sequence[SpecEntry]) -> str:
    """The spec. Raises ValueError without entries: the compiler rejects an empty spec."""
    if not entries:
        raise ValueError("a tuning spec needs at least one entry")
    inserts_batch = any(entry.matcher.is_batchless for entry in entries)
    attributes = "transform.with_named_sequence"
    if not inserts_batch:  # only a spec of one operation has the default entry point
        attributes += ", iree_codegen.tuning_spec_with_default_entrypoint"
    sequences = "\n".join(_sequence(at, entry) for at, entry in enumerate(entries))
    pairs = ",\n".join(f"        @match_{at} -> @apply_config" for at in range(len(entries)))
    target, insertion = "%module", ""
    if inserts_batch:
        target = "%prepared"
        insertion = (
            f'    %prepared = transform.apply_registered_pass "{_INSERT_BATCH}" to %module\n'
            f"        : ({_HANDLE}) -> {_HANDLE}\n"
        )
    return f"""module attributes {{{attributes}}} {{
  transform.named_sequence @apply_config(
      %op: {_HANDLE} {{transform.readonly}}, %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : {_HANDLE}, !transform.any_param
    transform.yield
  }}
{sequences}
  transform.named_sequence @__kernel_config(%module: {_HANDLE} {{transform.consumed}}) -> {_HANDLE}
      attributes {{iree_codegen.tuning_spec_entrypoint}} {{
{insertion}    %configured = transform.foreach_match in {target}
{pairs}
        : ({_HANDLE}) -> {_HANDLE}
    transform.yield %configured : {_HANDLE}
  }}
}}
"""


def _sequence(at: int, entry: SpecEntry) -> str:
    return f"""  // {entry.name}
  transform.named_sequence @match_{at}(
      %op: {_HANDLE} {{transform.readonly}}) -> ({_HANDLE}, !transform.any_param) {{
{entry.matcher.text()}
    %config = transform.param.constant {entry.compilation_info} -> !transform.any_param
    transform.yield %op, %config : {_HANDLE}, !transform.any_param
  }}"""
