"""vmfbs -> verified, measured records."""

from dispatch_profiler.profiler.inputs import DEFAULT_SEED, Distribution, draw
from dispatch_profiler.profiler.measure import Measurement, MeasureOptions, Timer
from dispatch_profiler.profiler.records import Provenance, Record, Verdict
from dispatch_profiler.profiler.references import References
from dispatch_profiler.profiler.session import ProfileOptions, Session
from dispatch_profiler.profiler.stopping import StopRule
from dispatch_profiler.profiler.verify import Comparison, compare

__all__ = [
    "DEFAULT_SEED",
    "Comparison",
    "Distribution",
    "MeasureOptions",
    "Measurement",
    "ProfileOptions",
    "Provenance",
    "Record",
    "References",
    "Session",
    "StopRule",
    "Timer",
    "Verdict",
    "compare",
    "draw",
]
