"""Replaces regions of a graph by runs, and keeps the strides and views that results have in eager torch."""
