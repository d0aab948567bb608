"""Why tests may be skipped: for properties of the machine. A test that is skipped for another reason fails.

A plugin of pytest, which `conftest.py` loads.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

#: Property -> the reasons that state it.
PROPERTIES = {
    "no NVIDIA GPU": r"no NVIDIA GPU, or no driver for it|torch has no CUDA device here|needs a GPU: .*"
    r"|no nvidia-smi to compare with",
    "the GPUs that there are": r"one GPU|this GPU takes that code|this machine has a device \S+"
    r"|torch cannot compile in a forked process once its parent has used a GPU",
    "no Chromium": r"playwright is not installed, or none of .* is on the PATH",
    "an older Python": r"loky is rejected before Python 3\.11|joblib's processes are refused there",
    "another system than Linux": r"needs (Linux|fork|schedstat)|reads /proc|counts threads in /proc"
    r"|the system has no idle class|this system has no /dev/full",
    "another version of torch": r"torch lacks this tag|torch without (torch\.distributed|oneDNN|precisions of single backends)"
    r"|torch's OpenMP library has no \w+|with this version of torch, no answer is kept"
    r"|torch (preprocesses no headers|cannot swap weights of compiled models: .*)"
    r"|could not import 'torch\.[\w.]+': .*",
    "an optional package that is not installed": r"could not import '(torch|triton|sklearn|kaleido|plotly|playwright"
    r"|junitparser|psycopg|optuna|numpy)[\w.]*': .*|Triton is not installed|the interpreter takes torch's tensors"
    r"|reads JUnit as CI systems do",
    "no compiler beside the runtime": r"no compiler here: give what it made with --vmfbs=DIR|could not import 'iree\.compiler.*",
    "a program that is not installed": r"needs openssl|(bash|zsh|fish|PostgreSQL) is not installed",
    "a CPU without instructions for bf16": r"torch rounds the sums of groups to bf16: oneDNN has no bf16 for this CPU",
    "a CPU for which torch packs weights of 4 bits otherwise": r"torch packs 4-bit weights otherwise on this CPU",
    "root without the right to give up its rights": r"root cannot give up its rights here",
}
_PROPERTY = re.compile("|".join(f"(?:{each})" for each in PROPERTIES.values()), re.DOTALL)


def is_property(reason: str) -> bool:
    """Whether a reason to skip a test states one of `PROPERTIES`."""
    return _PROPERTY.fullmatch(reason.removeprefix("Skipped: ").strip()) is not None


def _checked(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Let a report of a skip fail unless its reason is a property of the machine."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    path, line, reason = report.longrepr
    if not is_property(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{path}:{line}: {reason}: no property of the machine; those are listed in tests/skips.py"
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Check the reasons of tests."""
    report = yield
    _checked(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Check the reasons of files."""
    report = yield
    _checked(report)
    return report
