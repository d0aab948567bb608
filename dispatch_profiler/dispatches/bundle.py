"""A bundle: one zip with everything that a machine with the device, but without a compiler, needs.

    README.txt                                     what to install there, and the command
    generated/linalg/manifest.json                 the chosen dispatches, also if they did not compile
    generated/linalg/<kind>/<operation>/*.vmfb     as in a generated tree
    bundle.json                                    format, seed, compiler; hash and size of every file

Inputs are drawn from the seed and references are computed from them, so neither is included. The same
tree produces the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shlex
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches.dispatch import Artifact, DispatchEntry, OperationEntry
from dispatch_profiler.dispatches.manifest import Manifest, load_manifest, operation_line, to_text
from dispatch_profiler.dispatches.tree import Purpose, Tree
from dispatch_profiler.errors import TreeError, UsageError, reason_of
from dispatch_profiler.files.destinations import output_file
from dispatch_profiler.files.json_fields import mapping, parse_json, text, texts, whole
from dispatch_profiler.files.regular import open_regular, read_bounded, sha256
from dispatch_profiler.operations import DEFAULT_SEED, Operation
from dispatch_profiler.version import __version__

#: Packages that profiling a bundle needs besides this package; numpy and ml_dtypes come with the runtime.
REQUIREMENTS = ("iree-base-runtime >=3.13,<3.14", "numpy >=1.26", "ml_dtypes >=0.5")

_FORMAT = "dispatch_profiler bundle"
_VERSION = 1
_CONTENTS = "bundle.json"
_README = "README.txt"
#: Time of every member: the earliest that zip can represent.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Code shrinks to a fifth at 120 MB/s; the default level takes twice as long for 2 % less.
_LEVEL = 4
_CHUNK = 2**20
_MAGIC_SIZE = 4
#: Limits of a bundle, whatever it declares: bytes of a file, of a JSON file, and in total.
_LARGEST_FILE = 2**30
_LARGEST_JSON = 2**25
_LARGEST_TOTAL = 2**33
#: The total is also limited to this multiple of the zip's size: code shrinks to a fifth.
_LARGEST_RATIO = 200
_ALWAYS_ALLOWED = 2**24
#: Errors that reading a damaged zip raises.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, TypeError, ValueError,
    AttributeError, NotImplementedError, RuntimeError, OverflowError, RecursionError,
    FileExistsError, NotADirectoryError, IsADirectoryError,
)  # fmt: skip


@dataclass(frozen=True)
class BundleInfo:
    """Origin of a bundle.

    `made_by` is the version of this package, `host` the CPU that it was compiled on, if the code is specific
    to that CPU. Inputs are drawn from `seed` unless the user passes another one.
    """

    made_by: str
    target: str
    host: str
    compilers: tuple[str, ...]
    seed: int = DEFAULT_SEED


def write_bundle(
    path: Path, manifest: Manifest, chosen: Iterable[tuple[OperationEntry, DispatchEntry]]
) -> int:
    """Pack the `chosen` dispatches of a compiled tree and their vmfbs into `path`; returns its size in bytes.

    The write is atomic. Raises TreeError if a vmfb differs from the compiled one.
    """
    part = _part(manifest, chosen)
    files: dict[str, Artifact] = {}
    with output_file(path) as raw:
        with zipfile.ZipFile(raw, "w") as archive:
            # The name of a file may hold bytes that are not text.
            readme = _readme(path.name, part).encode("utf-8", "backslashreplace")
            _add(archive, _README, readme)
            for name, data in _members(part):
                _add(archive, name, data)
                files[name] = Artifact(sha256(data), len(data))
            _add(archive, _CONTENTS, _contents(_info(part), files).encode())
        return raw.tell()


def _part(manifest: Manifest, chosen: Iterable[tuple[OperationEntry, DispatchEntry]]) -> Manifest:
    """`manifest` with only the chosen dispatches and their modules."""
    groups: dict[Operation, tuple[OperationEntry, list[DispatchEntry]]] = {}
    for entry, dispatch in chosen:
        groups.setdefault(entry.operation, (entry, []))[1].append(dispatch)
    entries = []
    for entry, dispatches in groups.values():
        names = {d.dispatch.configuration.module for d in dispatches}
        modules = tuple(module for module in entry.modules if module.name in names)
        entries.append(replace(entry, dispatches=tuple(dispatches), modules=modules))
    return replace(manifest, entries=tuple(entries))


def _members(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file to pack, one at a time."""
    tree = manifest.tree
    yield _name(tree, tree.manifest), to_text(map(operation_line, manifest.entries)).encode()
    for entry in manifest.entries:
        for module in entry.modules:
            pairs: tuple[tuple[Purpose, Artifact | None], ...] = (
                ("verify", module.verify),
                ("profile", module.profile),
            )
            for purpose, artifact in pairs:
                if artifact is not None:
                    path = tree.vmfb(entry.operation, module.name, purpose)
                    yield _name(tree, path), _checked(path, artifact)


def _name(tree: Tree, path: Path) -> str:
    return path.relative_to(tree.folder).as_posix()


def _checked(path: Path, artifact: Artifact) -> bytes:
    try:
        data = read_bounded(path, _LARGEST_FILE)
    except UsageError as error:
        raise TreeError(error.message, hint="run compile.py again") from error
    if Artifact(sha256(data), len(data)) != artifact:
        raise TreeError(f"{path} differs from the compiled file", hint="run compile.py again")
    return data


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, on every system
    archive.writestr(info, data, zipfile.ZIP_DEFLATED, _LEVEL)


def _info(manifest: Manifest) -> BundleInfo:
    compilers = dict.fromkeys(module.compiler for entry in manifest.entries for module in entry.modules)
    targets = ", ".join(target.name for target in manifest.targets)
    return BundleInfo(__version__, targets, manifest.host, tuple(compilers))


def _contents(info: BundleInfo, files: dict[str, Artifact]) -> str:
    rows = {name: asdict(artifact) for name, artifact in files.items()}
    return (
        json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(info), "files": rows}, indent=1) + "\n"
    )


# -- the README of a bundle ------------------------------------------------------------------------


def command(name: str) -> str:
    """The command that profiles the bundle `name` on the other machine."""
    return f"dispatch-profiler profile {shlex.quote(f'--bundle={name}')} --output=data.csv"


def _readme(name: str, manifest: Manifest) -> str:
    info, count = _info(manifest), sum(len(entry.dispatches) for entry in manifest.entries)
    needed = " ".join(f"'{requirement.replace(' ', '')}'" for requirement in requirements(manifest))
    return f"""\
{counted(count, "dispatch")} of {counted(len(manifest.entries), "operation")} for {info.target}, to verify and measure.
Compiled by {", ".join(info.compilers) or "no compiler"}; packed by dispatch_profiler {info.made_by}.

On the machine with the device, in a virtual environment with Python 3.10 or newer:

    python -m pip install {needed}
    python -m pip install --no-deps dispatch_profiler-{info.made_by}-py3-none-any.whl

`make wheel` in a checkout builds the wheel; copy it next to the bundle. Instead of the wheel, you can
install from the folder of a checkout of the same version. Then run

    {command(name)}

with any other options of `dispatch-profiler profile`; --seed={info.seed} is the default. The results are
data.csv and data.jsonl. Back on the first machine,

    dispatch-profiler join data.jsonl FROM_THERE.jsonl --output=data.csv

merges both into one data.csv. A vmfb is native code: run only bundles from people you trust.
"""


def requirements(manifest: Manifest) -> tuple[str, ...]:
    """Packages to install besides this package, to verify and measure all of `manifest`."""
    more = {name for entry in manifest.entries for name in entry.operation.reference_requirements}
    return (*REQUIREMENTS, *sorted(more))


# -- reading ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[tuple[Manifest, BundleInfo]]:
    """The tree in the bundle `path`, in a temporary folder while the context is open.

    Raises TreeError if the file is missing, damaged or no bundle.
    """
    with _opened(path) as file, tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        info = _extract(path, file, Path(folder))
        tree = Tree(Path(folder), bundle=path)
        try:
            manifest = load_manifest(tree)
        except TreeError as error:
            raise TreeError(
                f"dispatch_profiler {__version__} cannot read the bundle {path}",
                hint=f"it was made by dispatch_profiler {info.made_by}: install that version",
            ) from error
        yield manifest, info


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except UsageError as error:
        raise TreeError(error.message, hint="compile.py --bundle=FILE.zip writes a bundle") from error


def _extract(path: Path, file: BinaryIO, folder: Path) -> BundleInfo:
    """Extract every file that the bundle lists into `folder`, each as it was packed, and nothing outside."""
    foreign = TreeError(
        f"{path} is not a bundle of dispatch_profiler", hint="compile.py --bundle=FILE.zip writes one"
    )
    if file.read(_MAGIC_SIZE) != b"PK\x03\x04":
        raise foreign
    try:
        with zipfile.ZipFile(file) as archive:
            if _CONTENTS not in archive.namelist():
                raise foreign
            row = _read_contents(archive)
            if row.get("format") != _FORMAT:
                raise foreign
            info = _read_info(path, row)
            left = min(_LARGEST_TOTAL, _LARGEST_RATIO * os.fstat(file.fileno()).st_size + _ALWAYS_ALLOWED)
            for name, artifact in _files(row).items():
                left -= artifact.bytes
                if left < 0:
                    raise ValueError("its files are too large for its size")
                _extract_one(archive, name, artifact, folder)
            return info
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENAMETOOLONG):
            raise  # an error of the disk, not of offsets or names in the zip
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> TreeError:
    reason = reason_of(error) or type(error).__name__
    hint = "copy it again, or run compile.py --bundle again"
    return TreeError(f"the bundle {path} is damaged: {reason}", hint=hint)


def _read_contents(archive: zipfile.ZipFile) -> Mapping[str, Any]:
    with archive.open(_CONTENTS) as source:
        data = source.read(_LARGEST_JSON + 1)
    if len(data) > _LARGEST_JSON:
        raise ValueError(f"{_CONTENTS} is larger than {_LARGEST_JSON} bytes")
    return mapping(parse_json(data), _CONTENTS)


def _files(row: Mapping[str, Any]) -> dict[str, Artifact]:
    """Hash and size of each file by name. FieldError for a name outside the folder or too large a size."""
    artifacts = {}
    for name, value in mapping(row.get("files"), "files").items():
        artifact = mapping(value, f"files.{name}")
        largest = _LARGEST_JSON if name.endswith(".json") else _LARGEST_FILE
        artifacts[_inside(name)] = Artifact(text(artifact, "sha256"), whole(artifact, "bytes", most=largest))
    return artifacts


def _read_info(path: Path, row: Mapping[str, Any]) -> BundleInfo:
    made_by = text(row, "made_by")
    if row.get("version") != _VERSION:
        raise TreeError(
            f"{path} is a bundle of version {row.get('version')!r}, but this program reads {_VERSION}",
            hint=f"it was made by dispatch_profiler {made_by}: install that version",
        )
    return BundleInfo(
        made_by, text(row, "target"), text(row, "host"), texts(row, "compilers"), whole(row, "seed")
    )


def _inside(name: str) -> str:
    """`name` if it stays inside its folder. ValueError otherwise."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
        raise ValueError(f"it names a file outside of its folder, {name!r}")
    return name


def _extract_one(archive: zipfile.ZipFile, name: str, artifact: Artifact, folder: Path) -> None:
    """Write one file in chunks. ValueError if it differs from the packed file."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with archive.open(name) as source, target.open("wb") as out:
        # Read no more than the declared size, which is bounded, whatever the stream holds.
        while size <= artifact.bytes and (chunk := source.read(_CHUNK)):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
    if Artifact(digest.hexdigest(), size) != artifact:
        raise ValueError(f"{name} differs from the packed file")
