"""Options of the commands that take a model: the model, its inputs and its mode."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dispatch_profiler.command import Parser, positive
from dispatch_profiler.errors import DispatchProfilerError, UsageError, described, raise_interrupt

if TYPE_CHECKING:
    from dispatch_profiler.boo.fusion.schema import FusionSchema

_TYPES = ("f32", "f16", "bf16", "f64")
_MOST_AXES = 8
#: Logger that prints errors with a traceback before they are raised.
_NOISY = "torch._subclasses.fake_tensor"


def add_model_arguments(parser: Parser) -> None:
    """Add `FILE.py:NAME`, `--matrix-products`, and the options of `add_input_arguments`."""
    parser.add_argument(
        "model", metavar="FILE.py:NAME",
        help="a model, or a function or class that returns a model, alone or with its inputs; MODULE:NAME for an "
        "installed module. The file is executed",
    )  # fmt: skip
    add_input_arguments(parser)
    parser.add_argument(
        "--matrix-products", action="store_true",
        help="include matrix products, as with the schema BOO_FUSIONS_WITH_MATRIX_PRODUCTS",
    )  # fmt: skip


def add_input_arguments(parser: argparse._ActionsContainer) -> None:
    """Add `--batch`, `--dtype`, `--input` and `--training`."""
    parser.add_argument(
        "--batch", type=_batches, default=(None,), metavar="N[,N]",
        help="batch sizes: passed to NAME if it has a parameter `batch`, otherwise the first axis of all inputs "
        "(default: as NAME returns them)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype",
        choices=_TYPES,
        help="type of the parameters and of floating-point inputs (default: unchanged)",
    )
    parser.add_argument(
        "--input", action="append", type=_shape, default=[], metavar="1x3x224x224",
        help="shape of a random f32 input; may be given several times (default: the inputs that NAME returns)",
    )  # fmt: skip
    parser.add_argument(
        "--training", action="store_true",
        help="run in training mode and compute gradients; their operations count if BOO_USE_BACKWARD_KERNELS=1",
    )  # fmt: skip


def _batches(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(each) for each in text.split(",")))


def _shape(text: str) -> tuple[int, ...]:
    extents = text.split("x")
    if len(extents) > _MOST_AXES or not all(
        each.isascii() and each.isdigit() and int(each) for each in extents
    ):
        raise argparse.ArgumentTypeError(f"expected a shape such as 1x3x224x224, but got {text[:80]!r}")
    return tuple(map(int, extents))


def schema_of(options: argparse.Namespace) -> FusionSchema:
    """The schema that the options select."""
    from dispatch_profiler.boo.fusion import schema  # imports torch

    wide = schema.BOO_FUSIONS_WITH_MATRIX_PRODUCTS
    return wide if options.matrix_products else schema.DEFAULT_SUPPORTED_BOO_FUSIONS


def models(options: argparse.Namespace) -> Iterator[tuple[str, Any, Any]]:
    """Name, model and inputs for each batch. Raises UsageError, also for errors of the file or the function."""
    from dispatch_profiler.boo.capture.models import ModelRequest, build_model, load_factory

    factory: Callable[..., Any] = load_factory(options.model)
    for batch in options.batch:
        name = options.model if batch is None else f"{options.model}, batch {batch}"
        yield (
            name,
            *build_model(factory, ModelRequest(batch, options.dtype, options.training, tuple(options.input))),
        )


@contextmanager
def reported_as(name: str, model: Any, inputs: Any) -> Iterator[None]:
    """Turn an error of the model in the block into a UsageError, with eager torch's error if it fails there, too."""
    from dispatch_profiler.boo.capture.models import eager_error, line_of

    log = logging.getLogger(_NOISY)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except DispatchProfilerError:
        raise
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        eager = eager_error(model, inputs)
        hint = "it runs in eager torch: torch.compile may not support the model, or the model depends on earlier calls"
        if eager is not None:
            hint = "it fails in eager torch as well: check the model and its inputs"
        failed = eager or error
        raise UsageError(f"{name} failed: {described(failed)}{line_of(failed)}", hint=hint) from error
    finally:
        log.setLevel(level)
