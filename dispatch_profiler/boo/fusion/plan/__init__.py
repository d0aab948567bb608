"""A graph with its regions replaced: runs of regions, and the strides and views that results have in eager torch."""
