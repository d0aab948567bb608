"""A test may be skipped for what the machine lacks, and for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from skips import PROPERTIES, is_property

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("reason", "is_one"),
    [
        ("torch has no CUDA device here", True),
        ("Skipped: could not import 'triton': No module named 'triton'", True),
        ("Skipped: could not import 'torch.testing._internal.common_methods_invocations': x\ny", True),
        ("bash is not installed", True),
        ("could not import 'dispatch_profiler': no", False),
        ("this does not work yet", False),
        ("one GPU, and it is slow", False),
        ("", False),
    ],
)
def test_reasons(reason: str, is_one: bool):
    assert is_property(reason) is is_one


def test_any_other_reason_fails_the_test_or_the_file(tmp_path: Path):
    """An expected failure is no skip."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='one GPU')\ndef test_a(): pass\n"
        "@pytest.mark.skip(reason='too slow')\ndef test_b(): pass\n"
        "def test_c(): pytest.skip('not yet')\n"
        "@pytest.mark.xfail\ndef test_d(): assert False\n"
    )
    (tmp_path / "test_others.py").write_text(
        "import pytest\npytest.importorskip('there_is_none')\ndef test_e(): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "skips", "-p", "no:cacheprovider", "--rootdir=.",
         "--continue-on-collection-errors", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert done.returncode != 0
    for words in ("too slow: no property", "not yet: no property", "'there_is_none'"):
        assert words in done.stdout
    assert "one GPU: no property" not in done.stdout


def test_contributing_lists_them():
    text = (HERE.parent / "CONTRIBUTING.md").read_text()
    assert [each for each in PROPERTIES if f"| {each} |" not in text] == []
