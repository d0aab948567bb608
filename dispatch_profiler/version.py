"""The version of this package. `setup.cfg`, commands and the keys of caches read it here."""

from __future__ import annotations

__version__ = "0.1.0"
