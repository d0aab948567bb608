"""`gemm` and `gemmfp16` of MIOpenDriver, which names A's height M and its width K, whether it is transposed or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import OperationError, UnsupportedFeature
from dispatch_profiler.operations import ElementTypes, Matmul, Operation, natural_result
from dispatch_profiler.workloads.miopen._flags import COMMON, FORWARD, INPUT, WEIGHT, Family, Flag, Values

_NOT_SCALED = "only A B is computed, without factors and without C"
_FLAGS = (
    Flag("forw", "F", "1", "1 forward, 2 gradient of A, 3 gradient of B, 0 all three"),
    Flag("a_h", "m", "256", "M: rows of A, or columns if it is transposed"),
    Flag("a_w", "k", "256", "K: columns of A, or rows if it is transposed"),
    Flag("b_w", "n", "256", "N: columns of B, or rows if it is transposed"),
    Flag("transA", "u", "0", "1: A is stored as its transpose", allowed=("0", "1")),
    Flag("transB", "v", "0", "1: B is stored as its transpose", allowed=("0", "1")),
    Flag("batch_count", "b", "1", "products", ("1",), "the product is a single one", also=("--batchsize",)),
    Flag(
        *("isColMajor", "C", "0", "1: matrices are column major", ("0",)),
        why="matrices are row major; exchange A and B: -m with -n, and -u with -v",
    ),
    Flag("alpha", "A", "1.0", "factor of A B", ("1.0", "1"), _NOT_SCALED),
    Flag("beta", "B", "0.0", "factor of C", ("0.0", "0"), _NOT_SCALED),
    *COMMON,
)
#: Values of -F in BOO's driver: MIOpenDriver computes the forward only.
_DIRECTIONS = {"1": (FORWARD,), "2": (INPUT,), "3": (WEIGHT,)}


@dataclass(frozen=True)
class GemmProblem:
    """`C = op(A) op(B)` of m x k and k x n; a transposed operand is stored as its transpose.

    `type` is the type of A, and of B unless `b_type` is another one.
    """

    kind: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    type: str = "f32"
    transposes_a: bool = False
    transposes_b: bool = False
    b_type: str = ""

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`."""
        return (FORWARD, INPUT, WEIGHT)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`: `input_backward` is the gradient of A, `weight_backward` the gradient of B.

        dA = dC op(B)^T and dB = op(A)^T dC, each stored as its operand is.
        """
        b_type = self.b_type or self.type
        types = ElementTypes(self.type, b_type, natural_result(self.type, b_type))
        if direction != FORWARD and len({types.lhs, types.rhs, types.result}) > 1:
            raise OperationError(
                f"a product of {types.inputs} has no {direction}",
                hint="gradients are for f16, bf16, f32 and f64, the same type for A and B",
            )
        a, b = ("n" if each else "t" for each in (self.transposes_a, self.transposes_b))
        if direction == FORWARD:
            return Matmul(self.m, self.n, self.k, types, a, b)
        if direction == INPUT:
            # A^T = op(B) dC^T, if A is stored transposed.
            if self.transposes_a:
                return Matmul(self.k, self.m, self.n, types, b, "n")
            return Matmul(self.m, self.k, self.n, types, "t", "n" if b == "t" else "t")
        if direction == WEIGHT:
            # B^T = dC^T op(A), if B is stored transposed.
            if self.transposes_b:
                return Matmul(self.n, self.k, self.m, types, "n", a)
            return Matmul(self.k, self.n, self.m, types, "n" if a == "t" else "t", "t")
        raise OperationError(f"a matrix product has no {direction}")


def _read(values: Values, type_: str) -> GemmProblem:
    m, n, k = (values.whole(name) for name in ("a_h", "b_w", "a_w"))
    return GemmProblem(m, n, k, type_, values["transA"] == "1", values["transB"] == "1")


def _write(problem: GemmProblem) -> dict[str, str]:
    if problem.b_type:
        raise UnsupportedFeature(
            f"MIOpenDriver has no command for gemm of {problem.type} and {problem.b_type}"
        )
    return {
        "a_h": str(problem.m),
        "a_w": str(problem.k),
        "b_w": str(problem.n),
        "transA": str(int(problem.transposes_a)),
        "transB": str(int(problem.transposes_b)),
    }


FAMILY = Family("gemm", {"gemm": "f32", "gemmfp16": "f16"}, _FLAGS, _DIRECTIONS, _read, _write)
