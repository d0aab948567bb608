"""Logs that are damaged at random: every line is read or skipped with a reason, and no other error is raised."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads import merged, read_workload, write_workload
from dispatch_profiler.workloads.workload_file import workload_text

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "benchmarks" / "workloads"
BENCH = (
    "hipblaslt-bench --api_method c -m 3 -n 5 -k 4 --lda 3 --stride_a 0 --alpha 1.000000 --transA N --batch_count 2 "
    "--bias_vector --a_type f32_r --activation_type gelu"
)
CSV = "transA,transB,M,N,K,a_type,b_type,d_type,compute_type\nT,N,3,5,4,f32_r,f32_r,f32_r,f32_r"
COMMANDS = "\n".join((SAMPLES / "miopen_commands.txt").read_text().splitlines()[-9:])
TEXTS = {
    "log": "\n".join((SAMPLES / "gemm_log.yaml").read_text().splitlines()[:3]),
    "bench": BENCH,
    "csv": CSV,
    "commands": COMMANDS,
    "transposed": "conv -m trans -n 2 -c 4 -H 5 -W 6 -k 6 -y 3 -x 2 -p 1 -q 0 -u 2 -v 3 -Y 1 -X 2 -g 2 -F 10 -b 1",
    "workload": workload_text(read_workload(SAMPLES / "resnet50_f32.txt").workload),
}
PIECES = st.one_of(
    st.sampled_from(
        ["0", "-1", "9" * 18, "9" * 30, "1e9", "nan", "", " ", "\n", ",", ": ", "{", "}", "-", "\x00", "é"]
    ),
    st.text(max_size=3),
)
#: Places in a text, each with how much is lost and what is put there.
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), PIECES), min_size=1, max_size=4)


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=60, derandomize=True)
@given(DAMAGE)
def test_damage_is_reported_and_what_is_left_can_be_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, damage: list[tuple[float, int, str]]
):
    text = TEXTS[name]
    for share, lost, added in damage:
        at = round(share * len(text))
        text = text[:at] + added + text[at + lost :]
    path = tmp_path_factory.getbasetemp() / f"{name}.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_workload(path)
    except UsageError as error:
        assert len(str(error)) < 1000
        return
    assert all(0 < len(line.reason) < 1000 and "\n" not in line.reason for line in found.skipped)
    assert found.workload == merged(list(found.workload.entries))
    copy = tmp_path_factory.getbasetemp() / "copy.yaml"
    write_workload(found.workload, copy)
    assert read_workload(copy).workload == found.workload
