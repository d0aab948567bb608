"""Which vector instructions inductor may use is asked once, and again if anything changes that the answer depends on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config, cpu_vec_isa

from dispatch_profiler.boo.backends import inductor
from dispatch_profiler.boo.backends.inductor import ask_for_vector_instructions


@pytest.fixture
def usable() -> list[str]:
    return ["wide", "narrow"]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, usable: list[str]) -> Iterator[list[Any]]:
    """The setting `vec_isa_ok` each time that inductor finds out what can be used, on a CPU that has two sets.

    The user has not set it; `conftest.py` has, for other tests.
    """
    found: list[Any] = []

    def valid() -> list[str]:
        found.append(config.cpp.vec_isa_ok)
        return ["wide", "narrow"] if config.cpp.vec_isa_ok else usable

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", valid)
    monkeypatch.setattr(inductor, "_supported", lambda: ["wide", "narrow"])
    with config.patch({"cpp.vec_isa_ok": None}):
        yield found


#: In older versions of torch, settings are those of all threads.
writes_notes = pytest.mark.skipif(
    not hasattr(config, "_hash_dirty_var"), reason="with this version of torch, no answer is kept"
)


@writes_notes
def test_the_second_time_the_answer_is_known(tmp_path: Path, asked: list[Any]) -> None:
    for _ in range(2):
        ask_for_vector_instructions(tmp_path)
    assert asked == [None, True]
    assert config.cpp.vec_isa_ok is None  # the user's setting


def test_what_cannot_be_used_is_asked_for_again(tmp_path: Path, asked: list[Any], usable: list[str]) -> None:
    usable.remove("wide")
    for _ in range(2):
        ask_for_vector_instructions(tmp_path)
    assert asked == [None, None]


def test_without_a_cache_nothing_is_kept(asked: list[Any]) -> None:
    for _ in range(2):
        ask_for_vector_instructions(None)
    assert asked == [None, None]


def test_settings_of_the_user_are_obeyed_and_not_kept(tmp_path: Path, asked: list[Any]) -> None:
    with config.patch({"cpp.vec_isa_ok": False}):
        ask_for_vector_instructions(tmp_path)
    ask_for_vector_instructions(tmp_path)
    assert asked == [False, None]


def test_another_environment_compiler_or_torch_is_asked_again(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpp_builder

    ask_for_vector_instructions(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    ask_for_vector_instructions(tmp_path)
    monkeypatch.setattr(cpp_builder, "get_compiler_version_info", lambda compiler: "another")
    ask_for_vector_instructions(tmp_path)
    monkeypatch.setattr(torch, "__version__", "another")
    ask_for_vector_instructions(tmp_path)
    with config.patch({"cpp.min_chunk_size": 4321}):
        ask_for_vector_instructions(tmp_path)
    assert asked == [None] * 5


@writes_notes
@pytest.mark.parametrize("damage", [b"", b"wide", b"\xff", b"x" * 5000])
def test_a_damaged_note_is_written_again(tmp_path: Path, asked: list[Any], damage: bytes) -> None:
    ask_for_vector_instructions(tmp_path)
    (note,) = (tmp_path / "inductor").iterdir()
    note.write_bytes(damage)
    for _ in range(2):
        ask_for_vector_instructions(tmp_path)
    assert asked == [None, None, True]


def test_the_supported_instructions_are_those_that_inductor_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with config.patch({"cpp.vec_isa_ok": True}):
        known = cpu_vec_isa.valid_vec_isa_list.__wrapped__()
    if cpu_vec_isa.x86_isa_checker():
        assert list(map(str, inductor._supported())) == list(map(str, known))
