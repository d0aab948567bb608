"""A run on several devices: each has its own default, and nothing is compared across unlike ones in silence."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import invented

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Selection, Tree, load_manifest
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.profiler.compare.pairing import CompareOptions, compare_records
from dispatch_profiler.profiler.evaluation.devices import Sessions, parse_devices, shares, unlike
from dispatch_profiler.profiler.evaluation.session import ProfileOptions
from dispatch_profiler.runtime import all_devices

TWO = "null://0,null://1"
SHAPES = ("--problem-m=8,16", "--problem-n=8", "--problem-k=8,16,24", "--lhs=f32")


def pairs_of(folder: Path):
    return load_manifest(Tree(folder)).choose(Selection.parse("*", "all"))


def test_every_share_of_an_operation_has_what_it_is_compared_with(tree):
    pairs = pairs_of(tree("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32"))
    others = [pair for pair in pairs if pair[1].dispatch.configuration != Default()]
    many = [*pairs, *others * 40]

    found = list(shares(many))

    assert sum(len(share.others) for share in found) == 41 * len(others)
    assert max(len(share.others) for share in found) == 16
    assert {share.baselines for share in found} == {tuple(p for p in pairs if p not in others)}
    assert len(found) == -(-41 * len(others) // 16)


def test_work_is_done_once_and_the_default_on_each_device_that_works_on_it(tree, run):
    folder = tree(*SHAPES)
    wanted = {dispatch.dispatch.name for _, dispatch in pairs_of(folder)}

    outcome = run("profiler", f"--devices={TWO}", "--format=json", "--budget=0.1", "--output=both.csv")

    records = [json.loads(line) for line in outcome.out.splitlines()]
    assert outcome.status == 0, outcome.err
    assert {record["dispatch"] for record in records} == wanted
    assert {record["verdict"] for record in records} == {"SUCCESS"}
    assert "unlike devices: null://0, null://1" in outcome.err
    counts = Counter((r["operation"], r["provenance"]["device"], r["configuration"]) for r in records)
    assert set(counts.values()) == {1}
    with_others = {key[:2] for key in counts}
    assert with_others == {key[:2] for key in counts if key[2] == "tile_config_default"}
    again = run("profiler", f"--devices={TWO}", "--resume", "--output=both.csv", "--format=json")
    assert again.out == ""
    assert f"of {len(wanted)} dispatches are in" in again.err


def test_devices_of_one_processor_take_turns_and_have_tables_of_their_own(run):
    """`local-task` and `local-sync` are as unlike as devices can be here: one has no threads."""
    shapes = ("--problem-m=8", "--problem-n=8,16", "--problem-k=8", "--lhs=f32", "--default-config=only")
    assert run("generator", "--target=llvm-cpu", *shapes).status == 0
    assert run("compile", "-j1").status == 0

    outcome = run(
        "profiler", "--devices=local-task,local-sync", "--benchmark-repetitions=2", "--format=table"
    )

    assert outcome.status == 0, outcome.err
    assert "unlike devices: local-task, local-sync; speeds are compared with" in outcome.err
    assert sum(f"matmul_8x{n}x8_f32t_f32t_f32t on local-" in outcome.out for n in (8, 16)) == 2
    assert outcome.out.count(" 1.00x ") == 2


def test_interrupted_those_that_were_visited_come_first(tree):
    """Ctrl-C while the second record is waited for: no thread goes on, and what is there is kept."""
    folder = tree(*SHAPES)
    options = ProfileOptions("null://0", seconds=60.0)
    with Sessions(Tree(folder), options, TWO.split(",")) as sessions:
        records = sessions.records(pairs_of(folder))
        found = [next(records)]
        with pytest.raises(KeyboardInterrupt):
            found.append(records.throw(KeyboardInterrupt()))
            found.extend(records)

    names = [(record.dispatch.name, record.provenance.device) for record in found]
    assert len(names) == len(set(names)) < 2 * len(pairs_of(folder))
    assert not any(record.is_failure for record in found)


def test_one_device_gives_records_in_their_order(tree):
    folder = tree(*SHAPES)
    pairs = pairs_of(folder)
    with Sessions(Tree(folder), ProfileOptions("null"), ["null"]) as sessions:
        found = [record.dispatch.name for record in sessions.records(pairs)]

    assert found == [dispatch.dispatch.name for _, dispatch in pairs]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected device URIs"),
        ("local-task,,null", "expected device URIs"),
        ("local-task,local-sync,local-task", "local-task is named twice"),
        ("local-task,cuda://0", "compiled for devices like local-task, but got cuda://0"),
    ],
)
def test_what_is_no_list_of_devices_is_told(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        parse_devices(text, "local-task")


def test_device_and_devices_exclude_each_other(tree, run):
    tree(*SHAPES)

    outcome = run("profiler", "--device=null", f"--devices={TWO}")

    assert outcome.status == 2
    assert "--device and --devices both say where to run" in outcome.err


def test_a_device_that_does_not_open_is_told(tree):
    folder = tree(*SHAPES)

    devices = ["null://0", "nonsense://3"]

    with (
        Sessions(Tree(folder), ProfileOptions("null"), devices) as sessions,
        pytest.raises(TargetError, match="no device 'nonsense://3' on this machine"),
    ):
        sessions.check_device()


def test_all_devices_are_those_of_the_driver():
    assert all_devices("local-task") == ("local-task",)
    assert all_devices("null") == ("null",)
    with pytest.raises(TargetError, match="no nonsense device on this machine"):
        all_devices("nonsense")


def test_alike_is_what_has_one_name():
    assert unlike(["local-task"]) == ""
    assert unlike(["local-task", "local-sync"]).startswith("unlike devices: local-task, local-sync;")


@pytest.mark.parametrize(
    ("base", "new", "said"),
    [
        (("local-task",), ("local-task",), ""),
        (("cuda://0",), ("cuda://1",), ""),
        (("local-task",), ("local-sync",), "unlike devices: local-task against local-sync"),
        (("local-task", "local-sync"), ("local-task",), "not measured on one device each"),
    ],
)
def test_compare_says_that_devices_are_unlike(base, new, said: str):
    def on(devices):
        return [
            replace(record, provenance=replace(record.provenance, device=devices[at % len(devices)]))
            for at, record in enumerate(invented(12, samples=9))
        ]

    told = compare_records(on(base), on(new), CompareOptions()).unlike

    assert (said in told) if said else not told
