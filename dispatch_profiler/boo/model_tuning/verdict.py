"""What a proof says: a table of the sides, and what to do with the library, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dispatch_profiler.boo.environment import TUNING_VARIABLE
from dispatch_profiler.boo.model_tuning.proof import AFTER, BEFORE, EAGER, INDUCTOR, ModelProof
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.profiler.statistics.comparison import Ratio

#: A difference that is no reason to change a program.
_LEAST = 0.01


def rows(proof: ModelProof) -> Iterator[tuple[str, ...]]:
    """A row for each side: milliseconds of a call, and the speedup over eager and over inductor with their intervals."""
    yield "", "ms a call", "over eager", "over inductor"
    for name, side in proof.sides.items():
        if side.failure:
            yield name, "-", side.failure
            continue
        speedups = (proof.speedup(name, each) if name != each else None for each in (EAGER, INDUCTOR))
        yield name, f"{side.median:.4g}", *("" if each is None else _times(each) for each in speedups)


def _times(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def conclusions(proof: ModelProof, library: Path | None, *, training: bool) -> Iterator[str]:
    """Whether tuning has made the model faster, which of the sides to use, and how."""
    if proof.note:
        yield f"Note: {proof.note}."
    gain, ours, rival = proof.speedup(AFTER, BEFORE), proof.ours, proof.rival
    if library is None:
        yield "No kernel is faster than what compiled models use without tuning."
    elif gain is not None:
        yield _gain(gain)
    elif failure := proof.sides[AFTER].failure:
        yield f"Do not use {library}; the model with its kernels {failure}."
    if not proof.has_times(ours):
        yield f"Our backend cannot be used for this model: it {proof.sides[ours].failure}"
        return
    over = None if rival is None else proof.speedup(ours, rival)
    if over is not None and over.high < 1.0:
        faster, use = _RIVALS[rival]  # type: ignore[index]
        yield f"{faster} is faster for this model on this machine ({1.0 / over.value:.2f} times as fast): {use}."
        return
    if over is not None and over.low <= 1.0:
        yield f"{_RIVALS[rival][0]} is as fast, within the interval."  # type: ignore[index]
    yield from _usage(library if ours == AFTER else None, training=training)


#: What is faster than our backend -> its name, and what to do.
_RIVALS = {
    EAGER: ("Eager PyTorch", "leave the model as it is"),
    INDUCTOR: ("Inductor", "use torch.compile(model)"),
}


def _gain(gain: Ratio) -> str:
    interval = f"({gain.low:.2f} to {gain.high:.2f})"
    if gain.low > 1.0 + _LEAST:
        return f"Tuning has made the model {gain.value:.2f} times as fast {interval}."
    if gain.high < 1.0:
        return (
            f"With the tuned kernels, the model takes {1.0 / gain.value:.2f} times as long: do not use them."
        )
    return f"Tuning has made no difference for the whole model: {gain.value:.2f} times as fast {interval}."


def _usage(library: Path | None, *, training: bool) -> Iterator[str]:
    yield "To use it:"
    options = "" if training else ', options={"freeze": True}'
    yield f'    torch.compile(model, backend="iree_boo_inductor"{options})'
    if library is not None:
        yield f"    {TUNING_VARIABLE}={library.absolute()} in the environment of the program"


def headline(proof: ModelProof) -> str:
    """`resnet.py:make_model on 2 threads, 21 rounds in turns; 95 % intervals:`"""
    rounds = max((len(each.milliseconds) for each in proof.sides.values()), default=0)
    return f"{proof.model} on {counted(proof.threads, 'thread')}, {counted(rounds, 'round')} in turns; 95 % intervals:"
