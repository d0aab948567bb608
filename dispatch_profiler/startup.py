"""Starts the processes of this package without importing modules from the current directory.

Python puts a script's folder, or the current directory, first on `sys.path`, where a `numpy.py` would
be executed instead of the installed one. Therefore the scripts of a checkout and `isolation.Worker` run
this file by its path. It imports the package that contains it, without adding the folder to `sys.path`.
This works on every Python; `python -P` requires 3.11.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # this file's folder

import contextlib
import os
import shlex
import signal
import threading
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

PACKAGE = "dispatch_profiler"
#: Seconds until a callback has ended.
_SOON = 0.05
_FOLDER = os.path.dirname(os.path.abspath(__file__))


def command() -> int:
    """`dispatch-profiler` and `python -m dispatch_profiler`."""
    return start(f"{PACKAGE}.__main__")


def generate() -> int:
    """`generator.py` and `dispatch-generator`."""
    return start(f"{PACKAGE}.generator.cli")


def compile_() -> int:
    """`compile.py` and `dispatch-compile`."""
    return start(f"{PACKAGE}.library.compile_cli")


def profile() -> int:
    """`profiler.py`."""
    return start(f"{PACKAGE}.profiler.cli")


def start(module: str, *, prog: str = "") -> int:
    """Call `main` of `module` with `prog`, by default the name of this process. Returns the exit status.

    If a required package is missing, prints the command that installs it.
    """
    forget_current_directory()
    import_package()
    prog = prog or os.path.basename(sys.argv[0])
    if prog == "__main__.py":
        prog = f"python -m {PACKAGE}"
    before, sys.unraisablehook = sys.unraisablehook, _interrupted_again
    try:
        return int(import_module(module).main(prog=prog))
    except KeyboardInterrupt:  # during the import of the command
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", PACKAGE):
            raise
        print(f"{prog}: error: {missing} is not installed; run: {install_command(missing)}", file=sys.stderr)
        return 2
    finally:
        sys.unraisablehook = before


def _interrupted_again(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that Python drops because it came in a callback of a weak reference, as imports have many."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    main = threading.main_thread().ident
    assert main is not None
    with contextlib.suppress(RuntimeError):  # Python exits
        threading.Timer(_SOON, signal.pthread_kill, (main, signal.SIGINT)).start()


def forget_current_directory() -> None:
    """Remove the current directory, and relative entries of PYTHONPATH, from `sys.path`."""
    given = os.environ.get("PYTHONPATH", "")
    entries = given.split(os.pathsep) if given else []
    named = {os.path.abspath(entry) for entry in entries if os.path.isabs(entry)}
    # `site` has already made all entries of PYTHONPATH absolute.
    relative = {os.path.abspath(entry) for entry in entries} - named
    sys.path[:] = [entry for entry in sys.path if entry and entry not in relative]
    if given:  # for every process that this one starts, such as the tools of --build-dir
        os.environ["PYTHONPATH"] = absolute_entries(given)


def absolute_entries(search_path: str) -> str:
    """A PYTHONPATH without its empty and relative entries: `:/a:b` -> `/a`."""
    return os.pathsep.join(entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry))


def import_package() -> None:
    """Import the package that contains this file, even if another package on `sys.path` has the same name."""
    if PACKAGE in sys.modules:
        return
    spec = spec_from_file_location(PACKAGE, os.path.join(_FOLDER, "__init__.py"))
    assert spec is not None and spec.loader is not None
    package = sys.modules[PACKAGE] = module_from_spec(spec)
    spec.loader.exec_module(package)


def install_command(missing: str, folder: str = _FOLDER) -> str:
    """The command that installs `missing`: for the checkout that holds the package's `folder`, or for the installed package."""
    # Imported here: it takes longer than all the rest.
    from importlib.metadata import PackageNotFoundError, requires

    checkout = os.path.dirname(folder)
    if os.path.exists(os.path.join(checkout, "pyproject.toml")):
        return shlex.join([sys.executable, "-m", "pip", "install", "--editable", checkout])
    try:
        stated = requires(PACKAGE) or []
    except PackageNotFoundError:  # a copy of the package without metadata
        stated = []
    required = [r.partition(";")[0].strip() for r in stated if "extra ==" not in r]
    named = [r for r in required if r.startswith(missing)]
    return shlex.join([sys.executable, "-m", "pip", "install", *(named or required or [missing])])


if __name__ == "__main__":
    import_package()
    import_module(f"{PACKAGE}.isolation").serve()
