"""Compiled on one machine, profiled on another: one zip goes there, records come back."""

from __future__ import annotations

import configparser
import csv
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.dispatches import Manifest, OperationEntry, Tree, bundle, unpacked
from dispatch_profiler.dispatches.bundle import requirements, write_bundle
from dispatch_profiler.errors import TreeError
from dispatch_profiler.operations import Epilogue, Matmul
from dispatch_profiler.profiler.records.record import StoredRecord
from dispatch_profiler.profiler.records.record_file import read_records

ROOT = Path(__file__).parents[2]
FAULTS = {
    "*_8x32x4": {"not_compiled": "no such tile"},
    "*_16x16x1": {"not_applied": True},
    "*_4x16x1": {"fault": "wrong_element"},
    "*": {"time_ms": 0.25},
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of another machine; what is temporary there lies in `temporary`."""
    folder = tmp_path / "elsewhere"
    (folder / "temporary").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    return folder


def carried(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`out.zip` goes elsewhere, and so do we; the tree that it was made of is no more."""
    shutil.copy("out.zip", elsewhere)
    shutil.rmtree("generated")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere / "temporary"))


def made_here(record: StoredRecord) -> StoredRecord:
    """Without what tells when, and by which command."""
    return replace(record, provenance=replace(record.provenance, when=""), reproduce="")


# -- the way there and back ------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_a_bundle_gives_the_records_of_its_tree(null_tree, run, elsewhere, monkeypatch):
    """Verdicts, reasons and figures are those of the tree, which is gone; nothing is left behind."""
    null_tree(faults=FAULTS)
    assert run("compile", "-j1", "--bundle=out.zip").status == 1
    run("profiler", "--output=here.csv")
    here = read_records(Path("here.jsonl"))
    carried(elsewhere, monkeypatch)

    profiled = run("profiler", "--bundle=out.zip", "--output=there.csv")

    there = read_records(Path("there.jsonl"))
    assert profiled.status == 1
    assert list(map(made_here, there)) == list(map(made_here, here))
    reasons = {record.verdict.value: record.reason for record in there}
    assert reasons["Not compiled"] == "no such tile"
    assert {"SUCCESS", "FAILED", "Not applied"} <= set(reasons)
    assert os.listdir("temporary") == []


@pytest.mark.slow
def test_the_line_of_a_record_names_the_bundle_and_runs_without_a_checkout(
    null_tree, run, elsewhere, monkeypatch
):
    """As it stands, where only the package can be imported."""
    null_tree()
    run("compile", "-j1", "--bundle=out.zip")
    carried(elsewhere, monkeypatch)
    run("profiler", "--bundle=out.zip", "--dispatches=*_default", "--output=data.csv")
    (record,) = read_records(Path("data.jsonl"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    done = subprocess.run(
        ["sh", "-c", f"{record.reproduce} --format=json"], capture_output=True, text=True, check=True
    )

    again = json.loads(done.stdout)
    assert (again["dispatch"], again["reproduce"]) == (record.dispatch, record.reproduce)
    assert "--bundle=out.zip" in shlex.split(record.reproduce)


@pytest.mark.usefixtures("in_process")
def test_records_come_back_and_join(null_tree, run, elsewhere, monkeypatch):
    """One CSV of both machines, however often it is joined."""
    from dispatch_profiler.profiler.report.join_cli import main as join

    home = null_tree()
    run("compile", "-j1", "--bundle=out.zip")
    run("profiler", "--dispatches=*_default", "--output=data.csv")
    carried(elsewhere, monkeypatch)
    run("profiler", "--bundle=out.zip", "--output=there.csv")
    monkeypatch.chdir(home)

    for _ in range(2):
        assert join(["data.jsonl", str(elsewhere / "there.jsonl"), "--output=data.csv"]) == 0

    with Path("data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + len(read_records(elsewhere / "there.jsonl"))
    assert [row["Dispatch"] for row in rows] == [r.dispatch for r in read_records(Path("data.jsonl"))]


def test_only_what_is_selected_is_packed(null_tree, run):
    null_tree()

    packed = run("compile", "-j1", "--dispatches=*_default,*_8x32x4", "--bundle=out.zip")
    listed = run("profiler", "--bundle=out.zip", "--dry-run")

    assert packed.status == 0
    assert sorted(line.rpartition("_config_")[2] for line in listed.out.splitlines()) == [
        "64x128_8x32x4",
        "default",
    ]
    with zipfile.ZipFile("out.zip") as archive:
        assert not [name for name in archive.namelist() if "ukernels" in name]


def test_the_same_tree_makes_the_same_bytes(null_tree, run):
    """Whenever, and under whatever rights of the files."""
    null_tree()
    run("compile", "-j1", "--bundle=out.zip")
    first = Path("out.zip").read_bytes()
    for path in Path("generated").rglob("*.vmfb"):
        path.chmod(0o600)
        os.utime(path, (0, 0))

    run("compile", "-j1", "--bundle=out.zip")

    assert Path("out.zip").read_bytes() == first


@pytest.mark.slow
def test_the_command_of_the_readme_runs(null_tree, run, elsewhere, monkeypatch):
    """What compile.py says and what README.txt says is one command."""
    null_tree()
    said = run("compile", "-j1", "--bundle=out.zip").err.splitlines()[-1].strip()
    carried(elsewhere, monkeypatch)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with zipfile.ZipFile("out.zip") as archive:
        lines = [line.strip() for line in archive.read("README.txt").decode().splitlines()]

    assert said in lines
    assert subprocess.run(["sh", "-c", said], capture_output=True, check=False).returncode == 0
    assert Path("data.csv").exists()


@pytest.mark.usefixtures("in_process")
def test_a_bundle_may_have_a_name_that_is_no_text(null_tree, run):
    null_tree()
    name = os.fsdecode(b"\xff.zip")

    assert run("compile", "-j1", f"--bundle={name}").status == 0

    with zipfile.ZipFile(name) as archive:
        assert r"--bundle=\udcff.zip" in archive.read("README.txt").decode()
    assert run("profiler", f"--bundle={name}", "--dispatches=*default").status == 0


# -- options of the profiler -----------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_a_bundle_is_resumed(null_tree, run, elsewhere, monkeypatch):
    """Though it is unpacked somewhere else each time."""
    null_tree()
    run("compile", "-j1", "--bundle=out.zip")
    carried(elsewhere, monkeypatch)
    run("profiler", "--bundle=out.zip", "--dispatches=*_default", "--output=data.csv")

    resumed = run("profiler", "--bundle=out.zip", "--output=data.csv", "--resume")

    names = [record.dispatch for record in read_records(Path("data.jsonl"))]
    assert "already in data.jsonl: 1 of" in resumed.err
    assert len(names) == len(set(names)) == len(run("profiler", "--bundle=out.zip", "--dry-run").out.split())


@pytest.mark.usefixtures("in_process")
def test_a_library_is_measured_beside_a_bundle(null_tree, run, elsewhere, monkeypatch):
    null_tree()
    run("compile", "-j1", "--dispatches=*_default", "--bundle=out.zip")
    carried(elsewhere, monkeypatch)

    run("profiler", "--bundle=out.zip", "--providers=iree,numpy", "--budget=0.05", "--output=data.csv")

    assert [r.provider for r in read_records(Path("data.jsonl"))] == ["IREE Codegen", "numpy"]


@pytest.mark.usefixtures("in_process")
def test_the_seed_comes_with_the_bundle(null_tree, run, monkeypatch):
    """And one that is given goes before it."""
    null_tree()
    monkeypatch.setattr(bundle.BundleInfo.__init__, "__defaults__", (7,))
    run("compile", "-j1", "--dispatches=*_default", "--bundle=out.zip")

    assert "(inputs from seed 7)" in run("profiler", "--bundle=out.zip").err
    assert "(inputs from seed 8)" in run("profiler", "--bundle=out.zip", "--seed=8").err


@pytest.mark.slow
def test_a_narrow_terminal_shows_a_bundle(null_tree, run):
    null_tree()
    run("compile", "-j1", "--dispatches=*_default", "--bundle=out.zip")

    status, shown = on_a_terminal(40, "profiler.py", "--bundle=out.zip", "--format=table")

    assert status == 0
    assert "1 SUCCESS" in plain(shown)


@pytest.mark.slow
def test_an_interrupted_run_leaves_nothing_unpacked(null_tree, run, elsewhere, monkeypatch):
    """Ctrl-C: status 130, what was measured is in the file, the temporary folder is gone."""
    null_tree(faults={"*_default": {"time_ms": 0.25}, "*": {"fault": "hang"}})
    run("compile", "-j1", "--bundle=out.zip")
    carried(elsewhere, monkeypatch)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "profiler.py"), "--bundle=out.zip", "--output=data.csv"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (os.listdir("temporary") and Path("data.jsonl").exists()):
        assert process.poll() is None
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=60) == 130
    assert os.listdir("temporary") == []


@pytest.mark.usefixtures("in_process")
def test_another_cpu_is_told(null_tree, run, monkeypatch):
    """Code for `this CPU` is for that of the machine that compiled."""
    null_tree()
    run("compile", "-j1", "--dispatches=*_default", "--bundle=out.zip")
    assert "another machine" not in run("profiler", "--bundle=out.zip").err
    monkeypatch.setattr("dispatch_profiler.targets.NullTarget.host", "x86_64 another")

    assert "compiled for another machine's CPU" in run("profiler", "--bundle=out.zip").err


# -- rejections ------------------------------------------------------------------------------------


@pytest.fixture
def good(null_tree, run) -> Path:
    """A small bundle."""
    null_tree()
    run("compile", "-j1", "--dispatches=*_default", "--bundle=out.zip")
    return Path("out.zip")


def rejection(run, name: str = "out.zip") -> str:
    """What the profiler says, in one sentence and a hint, without a traceback."""
    first, *rest = run("profiler", f"--bundle={name}").checked(2).err.splitlines()
    assert [line.partition(":")[0] for line in rest] in ([], ["hint"])
    return first.removeprefix("profiler.py: error: ")


def test_what_is_no_bundle_is_refused(run):
    Path("text.zip").write_text("PK is how zips begin")
    with zipfile.ZipFile("foreign.zip", "w") as archive:
        archive.writestr("a", "b")
    Path("folder.zip").mkdir()
    os.mkfifo("pipe.zip")

    assert rejection(run, "text.zip") == "text.zip is not a bundle of dispatch_profiler"
    assert rejection(run, "foreign.zip") == "foreign.zip is not a bundle of dispatch_profiler"
    assert rejection(run, "pipe.zip") == "cannot read pipe.zip: it is a named pipe, not a regular file"
    assert rejection(run, "nowhere.zip") == "cannot read nowhere.zip: No such file or directory"
    assert rejection(run, "folder.zip") == "cannot read folder.zip: it is a directory, not a regular file"


def declared(members: dict[str, bytes], name: str, size: int) -> None:
    """Put `size` zeros in the place of a file, declared as they are."""
    row = json.loads(members["bundle.json"])
    members[name] = bytes(size)
    row["files"][name] = {"sha256": hashlib.sha256(members[name]).hexdigest(), "bytes": size}
    members["bundle.json"] = json.dumps(row).encode()


def test_a_bundle_that_expands_too_far_is_rejected(run, good):
    """Files declared as they are: 40 MB of zeros are 40 kB of zip."""
    rewritten(good, lambda members: declared(members, "generated/zeros", 40_000_000))
    assert good.stat().st_size < 100_000
    assert rejection(run) == "the bundle out.zip is damaged: its files are too large for its size"


def test_a_manifest_that_is_too_large_is_not_read(run, good):
    rewritten(good, lambda members: declared(members, "generated/linalg/manifest.json", 2**25 + 1))
    assert f"bytes: expected a whole number from 0 to {2**25}, but got" in rejection(run)


def test_what_a_bundle_declares_of_its_contents_is_not_believed(run, good):
    """The list itself is read up to a limit."""
    rewritten(good, lambda members: members.update({"bundle.json": b" " * (2**25 + 1)}))
    assert f"bundle.json is larger than {2**25} bytes" in rejection(run)


def test_more_than_a_file_declares_is_not_unpacked(run, good, tmp_path):
    def lie(members: dict[str, bytes]) -> None:
        declared(members, "generated/zeros", 4000)
        members["generated/zeros"] = bytes(10_000_000)

    rewritten(good, lie)
    assert "generated/zeros differs from the packed file" in rejection(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": 3}, "files: expected an object, but got 3"),
        ({"files": {"a": []}}, "files.a: expected an object, but got a list"),
        ({"files": {"a": {"sha256": "x", "bytes": -1}}}, "bytes: expected a whole number from 0 to"),
        ({"files": {"a": {"sha256": "x", "bytes": 2**40}}}, "bytes: expected a whole number from 0 to"),
        ({"seed": "x"}, "seed: expected a whole number"),
        ({"compilers": "x"}, "compilers: expected a list"),
        ({"made_by": None}, "made_by: expected a string"),
    ],
)
def test_a_wrong_field_is_one_sentence(run, good, change, message):
    def changed(members: dict[str, bytes]) -> None:
        members["bundle.json"] = json.dumps({**json.loads(members["bundle.json"]), **change}).encode()

    rewritten(good, changed)

    assert message in rejection(run)


def test_a_bundle_goes_with_no_tree(run, good):
    outcome = run("profiler", f"--bundle={good}", "--generated-dir=tree").checked(2)
    assert "--bundle contains a tree" in outcome.err


def test_every_damage_is_found(good):
    """Bytes that are turned over, and a copy that stopped: refused, or what is read is what was packed."""
    whole, draws = good.read_bytes(), random.Random(5)
    with unpacked(good) as (manifest, info):
        right = manifest.entries, info, contents(manifest.tree)
    damages = [whole[:end] for end in draws.sample(range(4, len(whole)), 100)]
    for at in draws.sample(range(4, len(whole)), 400):
        damages.append(whole[:at] + bytes([whole[at] ^ (1 << draws.randrange(8))]) + whole[at + 1 :])

    refused = 0
    for data in damages:
        good.write_bytes(data)
        try:
            with unpacked(good) as (manifest, info):
                assert (manifest.entries, info, contents(manifest.tree)) == right
        except TreeError as error:
            refused += 1
            assert "\n" not in error.message
    assert refused > 300


def contents(tree: Tree) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree.folder)): path.read_bytes()
        for path in tree.folder.rglob("*")
        if path.is_file()
    }


def rewritten(path: Path, change) -> None:
    """The zip with `change` made to a dict of its members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data, zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize("name", ["../evil", "generated/../../evil", "/tmp/evil_of_a_bundle", "a\\..\\evil"])
def test_nothing_is_written_outside(run, good, tmp_path, name):
    """Also if hash and size are right."""

    def escape(members: dict[str, bytes]) -> None:
        row = json.loads(members["bundle.json"])
        old = next(iter(row["files"]))
        row["files"][name], members[name] = row["files"][old], members[old]
        members["bundle.json"] = json.dumps(row).encode()

    rewritten(good, escape)

    assert "names a file outside of its folder" in rejection(run)
    assert not list(tmp_path.rglob("evil*")) and not Path("/tmp/evil_of_a_bundle").exists()


def test_another_vmfb_in_its_place_is_refused(run, good):
    """The zip is whole; the hash tells."""

    def exchange(members: dict[str, bytes]) -> None:
        members[next(name for name in members if name.endswith("_verify.vmfb"))] = b"{}"

    rewritten(good, exchange)

    assert rejection(run).endswith("_verify.vmfb differs from the packed file")


@pytest.mark.parametrize("version", [2, "1"])
def test_a_later_bundle_says_what_made_it(run, good, version):
    def later(members: dict[str, bytes]) -> None:
        row = json.loads(members["bundle.json"])
        row.update(version=version, made_by="9.9")
        members["bundle.json"] = json.dumps(row).encode()

    rewritten(good, later)

    assert f"bundle of version {version!r}" in rejection(run)
    assert "made by dispatch_profiler 9.9" in run("profiler", "--bundle=out.zip").err


def test_a_vmfb_that_changed_is_not_packed(null_tree, run):
    """And the old bundle stays as it was."""
    from dispatch_profiler.dispatches import load_manifest

    tree = Tree(null_tree())
    manifest = load_manifest(tree)
    Path("out.zip").write_text("old")
    next(tree.root.rglob("*_verify.vmfb")).write_text("changed")

    with pytest.raises(TreeError, match="differs from the compiled file"):
        write_bundle(Path("out.zip"), manifest, manifest.dispatches())

    assert Path("out.zip").read_text() == "old"


def test_where_no_bundle_can_be_written_nothing_is_compiled(run):
    run("generator", "--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8")

    outcome = run("compile", "-j1", "--bundle=nowhere/out.zip").checked(2)
    assert outcome.err.startswith("compile.py: error: --bundle: there is no folder nowhere")
    assert not list(Path("generated").rglob("*.vmfb"))


# -- what it needs ---------------------------------------------------------------------------------


def test_what_a_bundle_needs_is_what_the_package_asks_for():
    """Word for word a part of setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    asked = setup["options"]["install_requires"].splitlines()
    plain_, gelu = (
        Manifest(Tree(Path()), (OperationEntry(op, "null", "", (),),))
        for op in (Matmul(2, 2, 2), Matmul(2, 2, 2, epilogue=Epilogue.parse("bias+gelu")))
    )  # fmt: skip

    assert {*requirements(gelu)} <= {*asked}
    assert {*requirements(gelu)} - {*requirements(plain_)} == {"scipy >=1.12"}


#: Finds nothing but the standard library and what a bundle needs; the compiler is not among it.
ONLY = """
import sys

class Only:
    @staticmethod
    def find_spec(name, path=None, target=None):
        needed = ("dispatch_profiler", "numpy", "ml_dtypes", "iree", "coverage", *sys.stdlib_module_names)
        if name.partition(".")[0] not in needed or name.startswith("iree.compiler"):
            raise ModuleNotFoundError(f"{name} is not on this machine", name=name)

sys.meta_path.insert(0, Only)
"""
SMALL = ("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32,bf16", "--epilogue=none,bias+relu")


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_runtime_and_numpy_are_enough(run, elsewhere, monkeypatch):
    """Compiled by IREE for this CPU, verified and measured where nothing else can be imported."""
    assert run("generator", *SMALL, "--default-config=only").status == 0
    assert run("compile", "--bundle=out.zip").status == 0
    carried(elsewhere, monkeypatch)
    Path("sitecustomize.py").write_text(ONLY)
    monkeypatch.setenv("PYTHONPATH", f"{elsewhere}{os.pathsep}{ROOT}")
    blocked = subprocess.run([sys.executable, "-c", "import rich"], capture_output=True, check=False)
    assert b"rich is not on this machine" in blocked.stderr

    done = subprocess.run(
        [sys.executable, "-m", "dispatch_profiler", "profile", "--bundle=out.zip", "--output=data.csv",
         "--providers=iree,numpy", "--budget=0.1", "--markdown=a.md", "--junit=a.xml", "--format=table"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    with Path("data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Provider"] for row in rows].count("IREE Codegen") == 4
    assert {row["Verification"] for row in rows if row["Provider"] == "IREE Codegen"} == {"SUCCESS"}
    assert all(float(row["Runtime(ms)"]) > 0 for row in rows if row["Provider"] == "IREE Codegen")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_environment_as_the_readme_has_it(run, elsewhere, monkeypatch):
    """A real one, made by the lines of README.txt, with the wheel of `make wheel`."""
    checkout = elsewhere / "checkout"  # where building leaves its files
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    subprocess.run(["make", "wheel"], cwd=checkout, check=True)
    assert run("generator", *SMALL, "--default-config=only").status == 0
    assert run("compile", "--bundle=out.zip").status == 0
    carried(elsewhere, monkeypatch)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with zipfile.ZipFile("out.zip") as archive:
        lines = [line.strip() for line in archive.read("README.txt").decode().splitlines()]
    install = [line for line in lines if line.startswith("python -m pip")]
    (wheel,) = (checkout / "dist").iterdir()
    assert install[1].endswith(wheel.name)
    wheel.rename(wheel.name)
    (profile,) = [line for line in lines if line.startswith("dispatch-profiler profile")]
    subprocess.run([sys.executable, "-m", "venv", "env"], check=True)
    monkeypatch.setenv("PATH", f"{elsewhere / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}")

    for line in (*install, f"{profile} --budget=0.1"):
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"

    listed = subprocess.run(["pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    names = {row["name"].replace("_", "-") for row in json.loads(listed.stdout)}
    assert names <= {"dispatch-profiler", "iree-base-runtime", "numpy", "ml-dtypes", "pip", "setuptools"}
    assert {r.verdict.value for r in read_records(Path("data.jsonl"))} == {"SUCCESS"}


def test_of_a_manifest_only_the_chosen_modules_are_named(null_tree):
    """What a bundle lacks its manifest does not speak of."""
    from dispatch_profiler.dispatches import load_manifest

    manifest = load_manifest(Tree(null_tree()))
    chosen = [(e, d) for e, d in manifest.dispatches() if d.dispatch.configuration.module == ""]

    write_bundle(Path("out.zip"), manifest, chosen)

    with unpacked(Path("out.zip")) as (part, _):
        assert [d for _, d in part.dispatches()] == [d for _, d in chosen]
        assert {m.name for entry in part.entries for m in entry.modules} == {""}
