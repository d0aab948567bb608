"""Entries of a library as code for programs outside Python: object files with a C header, or vmfbs."""

from __future__ import annotations

from dispatch_profiler.library.c_export.export import Exported, export_c, export_vmfbs

__all__ = ["Exported", "export_c", "export_vmfbs"]
