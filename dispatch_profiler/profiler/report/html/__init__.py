"""The HTML report: one file with tables and interactive figures, which are also exported as SVG and PNG."""

from dispatch_profiler.profiler.report.html.comparison import comparison
from dispatch_profiler.profiler.report.html.distribution import distribution
from dispatch_profiler.profiler.report.html.export import export, figures
from dispatch_profiler.profiler.report.html.groups import Group, ReportEntry, file_names, grouped
from dispatch_profiler.profiler.report.html.heat_map import heat_maps
from dispatch_profiler.profiler.report.html.page import render_page
from dispatch_profiler.profiler.report.html.roofline import roofline, scaling
from dispatch_profiler.profiler.report.html.summary import summary

__all__ = [
    "Group",
    "ReportEntry",
    "comparison",
    "distribution",
    "export",
    "figures",
    "file_names",
    "grouped",
    "heat_maps",
    "render_page",
    "roofline",
    "scaling",
    "summary",
]
