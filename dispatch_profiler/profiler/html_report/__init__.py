"""A report for people: one HTML file with tables and interactive figures, and figures for papers."""

from dispatch_profiler.profiler.html_report.comparison import comparison
from dispatch_profiler.profiler.html_report.distribution import distribution
from dispatch_profiler.profiler.html_report.export import export, figures
from dispatch_profiler.profiler.html_report.groups import Entry, Group, grouped
from dispatch_profiler.profiler.html_report.heat_map import heat_map
from dispatch_profiler.profiler.html_report.page import render_page
from dispatch_profiler.profiler.html_report.roofline import roofline

__all__ = [
    "Entry",
    "Group",
    "comparison",
    "distribution",
    "export",
    "figures",
    "grouped",
    "heat_map",
    "render_page",
    "roofline",
]
