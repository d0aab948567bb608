"""The compiler's own constraints on the tiles of a GPU pipeline, checked and solved with an SMT solver.

With `--iree-codegen-emit-pipeline-constraints` IREE adds an `iree_codegen.smt.constraints` operation
beside the root operation for each pipeline: knobs, and assertions over them with a message each. This
module reads and solves them (extra `smt`: z3), and compares them with this package's rules (`MmaTiles.invalid_reason`):

    knobs  wg_0=128 wg_1=64 sg_0=4 sg_1=4 red_2=2 ...   <->   MmaTiles(workgroup=(128, 64), ...)

IREE 3.13 emits them for matrix instructions only, and crashes for operations with a batch loop; the
constraints of a batch_matmul are the constraints of each of its products.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.configurations import INTRINSICS, Default, Intrinsic, MmaTiles
from dispatch_profiler.configurations.gpu.intrinsics import FAMILIES
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.generator import render_module
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target

_FLAG = "--iree-codegen-emit-pipeline-constraints"
#: Tiles to try before the solver chooses one.
_POWERS = tuple(2**i for i in range(10))
#: Time limit in seconds for the compiler to emit constraints.
_SECONDS = 120.0
#: Resource limit of the solver per query (z3's `rlimit`).
_EFFORT = 5_000_000

Assignment = dict[str, int]


@dataclass(frozen=True)
class Constraints:
    """Assertions over the knobs of one pipeline for one operation, as SMT-LIB text with a message each."""

    operation: Operation
    pipeline: str
    implicit_gemm: bool
    intrinsics: tuple[Intrinsic, ...]
    knobs: tuple[str, ...]
    messages: tuple[str, ...]
    smtlib: str

    @cached_property
    def _assertions(self) -> list[tuple[Any, frozenset[str]]]:
        """Each assertion with the names of its variables."""
        assertions = list(_z3().parse_smt2_string(self.smtlib))
        if len(assertions) != len(self.messages):
            raise ToolError(
                f"the compiler emitted {len(self.messages)} constraints, but {len(assertions)} as SMT-LIB"
            )
        return [(assertion, frozenset(_variables(assertion))) for assertion in assertions]

    def violated(self, assignment: Assignment) -> list[str]:
        """Messages of the violated assertions. Raises KeyError if a variable has no value."""
        z3 = _z3()
        values = {**assignment, **self._problem()}
        found = []
        for (assertion, names), message in zip(self._assertions, self.messages, strict=True):
            pairs = [(z3.Int(name), z3.IntVal(values[name])) for name in names]
            if not z3.is_true(z3.simplify(z3.substitute(assertion, *pairs))):
                found.append(message)
        return found

    def solutions(self, rng: np.random.Generator) -> Iterator[Assignment]:
        """Distinct random assignments that satisfy all assertions; ends when new ones become rare.

        The knobs, in a random order, get a random tile if a solution still exists. The solver chooses the
        others.
        """
        z3 = _z3()
        # A separate context and a limit independent of time: the same seed gives the same solutions.
        context = z3.Context()
        solver = z3.Solver(ctx=context)
        solver.set("rlimit", _EFFORT)
        solver.add(z3.parse_smt2_string(self.smtlib, ctx=context))
        tiles = [name for name in self.knobs if re.fullmatch(r"(wg|sg|red)_\d+|mma_idx", name)]
        seen: set[frozenset[tuple[str, int]]] = set()
        stale = 0
        while stale < 20:
            found = self._draw(solver, tiles, rng)
            if found is None or frozenset(found.items()) in seen:
                stale += 1
                continue
            stale = 0
            seen.add(frozenset(found.items()))
            yield found

    def _draw(self, solver: Any, tiles: Sequence[str], rng: np.random.Generator) -> Assignment | None:
        z3 = _z3()
        pinned: list[Any] = []
        for at in rng.permutation(len(tiles)):
            wanted = z3.Int(tiles[at], ctx=solver.ctx) == int(rng.choice(_POWERS))
            if solver.check(*pinned, wanted) == z3.sat:
                pinned.append(wanted)
        if solver.check(*pinned) != z3.sat:
            return None
        model = solver.model()
        # Knobs and other variables, such as the number of subgroups along m. The solver's own functions
        # (division by zero) have arguments.
        values = (each for each in model.decls() if each.arity() == 0)
        return {each.name(): model[each].as_long() for each in values}

    def _problem(self) -> Assignment:
        loops = enumerate(self.operation.as_contraction().one_of_batch.loops)
        return {f"problem_dim_{i}": loop.extent for i, loop in loops}

    # -- conversion to and from configurations --------------------------------------------------------

    def assignment_of(self, tiles: MmaTiles) -> Assignment:
        """The knobs of `tiles`, which must be for this pipeline."""
        operation = self.operation.as_contraction().one_of_batch
        lowering, intrinsic = tiles.lowering(operation), tiles.intrinsic(operation)
        levels = dict(lowering.levels)
        *m_counts, n_count = tiles.subgroups
        found = {
            "sg_m_cnt": math.prod(m_counts),
            "sg_n_cnt": n_count,
            "sg_size": tiles.subgroup_size,
            "wg_size_x": tiles.threads,
            "wg_size_y": 1,
            "wg_size_z": 1,
            "prefetch_num_stages": tiles.stages,
            "mma_idx": self.intrinsics.index(intrinsic) if intrinsic in self.intrinsics else -1,
            "use_igemm_idx": int(self.implicit_gemm),
        }
        for prefix, level in (("wg", "workgroup"), ("sg", "subgroup")):
            found |= {f"{prefix}_{i}": tile for i, tile in enumerate(levels.get(level, ()))}
        red = next(name for name in self.knobs if name.startswith("red_"))
        found[red] = max(levels["reduction"])
        return found

    def configuration_of(self, assignment: Mapping[str, int]) -> MmaTiles:
        """The configuration of the knobs."""
        operation = self.operation.as_contraction().one_of_batch
        intrinsic = self.intrinsics[assignment["mma_idx"]]
        loops = [loop.name for loop in operation.loops]
        axes = [loops.index(axis) for axis in operation.parallel_axes]
        workgroup = tuple(assignment.get(f"wg_{i}", 1) for i in axes)
        unit = (*(1,) * (len(axes) - 2), *intrinsic.shape[:2])
        in_intrinsics = self.pipeline == "TileAndFuse"
        k = next(value for name, value in assignment.items() if name.startswith("red_"))
        k *= intrinsic.shape[2] if in_intrinsics else 1
        if in_intrinsics:
            each = zip(workgroup, unit, (assignment[f"sg_{i}"] for i in axes), strict=True)
            subgroups = tuple(tile // (one * several) for tile, one, several in each)
        else:
            outer = (1,) * (len(axes) - 2)
            subgroups = (*outer, assignment["sg_m_cnt"], assignment["sg_n_cnt"])
        direct = operation.convolution is not None and not self.implicit_gemm
        family = FAMILIES[intrinsic.family]
        return MmaTiles(
            workgroup=workgroup,
            reduction=(1, 1, k) if direct else (k,),
            subgroups=subgroups,
            instruction=family,
            shape=intrinsic.shape if _has_several(self.intrinsics, family) else (),
            # 0 and 1 both mean no pipelining.
            stages=max(1, assignment["prefetch_num_stages"]),
            subgroup_size=assignment["sg_size"],
            pipeline=self.pipeline,
        )

    def fits(self, tiles: MmaTiles) -> bool:
        """Whether these constraints apply to `tiles`.

        They are for the loops of the operation without split-k, and with VectorDistribute only for tiles
        of one row of pixels.
        """
        same = (
            tiles.split_k == 1
            and tiles.pipeline == self.pipeline
            and tiles.is_implicit_gemm(self.operation) == self.implicit_gemm
        )
        outer = (*tiles.workgroup[:-2], *tiles.subgroups[:-2])
        return same and (self.pipeline == "TileAndFuse" or all(each == 1 for each in outer))


class _Unsplit(Default):
    """The compiler's own choice for the loops of an operation as they are, to which constraints apply.

    IREE 3.13 crashes when it emits constraints of a long sum that is split into slices.
    """

    def slices(self, operation: Operation) -> int:
        return 1


def compiler_constraints(target: Target, operation: Operation) -> tuple[Constraints, ...]:
    """The compiler's constraints for `operation` on `target`; empty if it uses no matrix instruction.

    Raises UsageError for operations on which IREE 3.13 crashes, or which it folds, so that knobs would refer
    to other loops.
    """
    reason = _unsupported_reason(operation)
    if reason:
        raise UsageError(f"the compiler emits no constraints for {operation.name}: {reason}")
    # The flag applies to the whole process and would affect every later build.
    with Worker(WorkerLimits(_SECONDS)) as worker:
        found: tuple[Constraints, ...] = worker.call(_emitted, target, operation)
        return found


def _emitted(target: Target, operation: Operation) -> tuple[Constraints, ...]:
    module = _configured_module(target, operation)
    return tuple(_parse(op, operation) for op in _constraints_in(module))


def _configured_module(target: Target, operation: Operation) -> IrModule:
    """The compiler's default for `operation`, configured, with the constraints beside it."""
    one = operation.as_contraction().one_of_batch
    phases, flags = InProcess(), (*target.compile_flags, _FLAG)
    module = phases.parse(render_module(one, (Dispatch(one, _Unsplit()),)), flags)
    return phases.advance(module, flags, stop="executable-configurations")


def _constraints_in(module: IrModule) -> Iterator[Any]:
    return (op for op in operations_in(module.operation) if op.name == "iree_codegen.smt.constraints")


def _unsupported_reason(operation: Operation) -> str:
    if operation.contraction is None:
        return f"{operation.kind} uses no matrix instruction"
    convolution = operation.convolution
    if convolution is None:
        return ""
    if not convolution.is_canonical or convolution.spatial_rank != 2:
        return "only forward conv2d in nhwc and nchw is supported"
    if convolution.variant != "dense":
        return f"IREE 3.13 crashes on a {convolution.variant} convolution"
    if 1 in (convolution.batch, *convolution.output_size) or set(convolution.filter_size) == {1}:
        return "its loops of extent 1 are folded away"
    return ""


def _parse(op: Any, operation: Operation) -> Constraints:
    from iree.compiler.dialects import iree_codegen

    text, body = str(op.attributes["knobs"]), str(op)
    found = re.search(r"<(\w+)>", str(op.attributes["pipeline"]))
    kinds = re.findall(r"mma_layout<(\w+)>", text)
    asserted = re.findall(r'smt\.assert %\S+, "([^"]*)"', body)
    return Constraints(
        operation=operation,
        pipeline=found[1] if found else "",
        implicit_gemm="use_igemm_idx == 1 (" in body,
        intrinsics=tuple(INTRINSICS[name] for name in kinds),
        knobs=tuple(re.findall(r'_knob<"(\w+)"', text)),
        messages=tuple(asserted),
        smtlib=iree_codegen.convert_constraints_op_to_smtlib(op),
    )


def _has_several(intrinsics: Sequence[Intrinsic], family: str) -> bool:
    return sum(FAMILIES[each.family] == family for each in intrinsics) > 1


def _variables(expression: Any) -> set[str]:
    """Names of the variables in a solver expression."""
    z3 = _z3()
    if z3.is_const(expression) and expression.decl().kind() == z3.Z3_OP_UNINTERPRETED:
        return {expression.decl().name()}
    return set().union(*(_variables(child) for child in expression.children()))


def _z3() -> Any:
    try:
        import z3
    except ImportError as error:
        raise UsageError(
            "the SMT solver is missing", hint="python -m pip install 'z3-solver>=4.12'"
        ) from error
    return z3
