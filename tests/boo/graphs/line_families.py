"""How often each family of lines is drawn, in graphs of several kinds."""

from __future__ import annotations

from collections.abc import Callable

from drafts import Draft
from drawn_lines import (
    Line,
    arithmetic,
    buffer_update,
    channel_norm,
    complex_view,
    convolution,
    gather,
    graph_break,
    in_place,
    joined,
    layer_norm,
    pointwise,
    pool,
    product,
    reduction,
    use_of_parameter,
    view,
    views,
)

#: What most graphs begin with: something that a kernel computes.
FIRST = (convolution, convolution, convolution, layer_norm, product)
Families = dict[Callable[[Draft], Line], float]
#: How often each family is drawn: in the first and last lines of a graph, in networks whose regions form one chain and
#: in views of what these give, and in graphs of anything.
BODY: Families = {
    **{convolution: 4, channel_norm: 2, pointwise: 4, arithmetic: 2, pool: 1, layer_norm: 0.7, product: 0.7},
    **{joined: 0.4, in_place: 0.3, views: 0.2, view: 0.3},
}
ENDING: Families = {
    **{
        view: 6,
        views: 2.5,
        in_place: 1.5,
        pointwise: 1,
        reduction: 1,
        joined: 0.7,
        arithmetic: 0.5,
        product: 0.4,
    },
    **{gather: 0.3, buffer_update: 0.3, use_of_parameter: 0.3, complex_view: 0.3, graph_break: 0.3},
}
NETWORK: Families = {
    **{
        convolution: 5,
        channel_norm: 1,
        pointwise: 4,
        arithmetic: 2,
        pool: 2,
        layer_norm: 0.7,
        reduction: 0.4,
    },
    **{product: 0.3, view: 0.3},
}
VIEWS: Families = {view: 3, views: 1, in_place: 0.2}
FAMILIES: Families = {
    **{
        convolution: 3,
        product: 1.5,
        layer_norm: 1,
        channel_norm: 2,
        pool: 1.5,
        pointwise: 4,
        arithmetic: 2.5,
    },
    **{reduction: 0.7, view: 4.5, views: 1.2, gather: 0.5, joined: 0.8, in_place: 1.8, buffer_update: 0.3},
    **{use_of_parameter: 0.3, complex_view: 0.2, graph_break: 0.25},
}
