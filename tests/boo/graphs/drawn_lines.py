"""Lines that graphs may have, by family. Each takes a draft, and gives a line, what it reads, and how many values it makes.

Raises `Unfit` where the draft has nothing that fits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from drafts import Draft, Unfit

Line = tuple[Any, ...]


def convolution(draft: Draft) -> Line:
    rng = draft.draw
    x = draft.pick(lambda each: each.dim() in (3, 4, 5) and 2 <= each.shape[1] <= 16)
    shape = draft.values[x].shape
    rank, channels = len(shape) - 2, shape[1]
    kernel = rng.choice((1, 3, 3))
    size = (
        tuple(kernel if each > 1 or kernel == 1 else 1 for each in shape[2:])
        if draft.chance(0.5)
        else (kernel,) * rank
    )
    groups = rng.choice([each for each in (1, 1, 1, 2, channels) if channels % each == 0])
    filters = rng.choice((2, 4, 8))
    if filters % groups:
        filters = groups
    transposed, scale = draft.chance(0.2), 1 / math.sqrt(channels // groups * math.prod(size))
    w = draft.parameter(
        *((channels, filters // groups) if transposed else (filters, channels // groups)), *size, scale=scale
    )
    reads = [x, w] + ([draft.parameter(filters)] if draft.chance(0.6) else [])
    options = {
        "stride": rng.choice((1, 1, 1, 2)),
        "padding": kernel // 2 if draft.chance(0.8) else 0,
        "groups": groups,
    }
    # Where the image has one row or column, oneDNN reads outside of it then, in eager torch, and may crash.
    is_read_outside = options["stride"] == 2 and options["padding"] and 1 in shape[2:]
    if draft.chance(0.15) and not is_read_outside:
        options["dilation"] = 2
    if transposed and options["stride"] == 2 and draft.chance(0.5):
        options["output_padding"] = 1
    return _call(f"functional.conv{'_transpose' if transposed else ''}{rank}d", reads, **options)


def _call(name: str, reads: list[str], *more: Any, **options: Any) -> Line:
    given = [*("{}" for _ in reads), *map(repr, more), *(f"{key}={each!r}" for key, each in options.items())]
    return f"{name}({', '.join(given)})", reads


def product(draft: Draft) -> Line:
    rng = draft.draw
    kind = rng.choice(("linear", "linear", "matmul", "square", "addmm", "einsum", "baddbmm"))
    if kind == "linear":
        x = draft.pick(lambda each: each.dim() >= 2)
        size, features = draft.values[x].shape[-1], rng.choice((4, 6, 8))
        w = draft.parameter(features, size, scale=1 / math.sqrt(size))
        return _call("functional.linear", [x, w] + ([draft.parameter(features)] if draft.chance(0.7) else []))
    if kind == "einsum":
        x = draft.pick(lambda each: each.dim() == 4)
        w = draft.parameter(draft.values[x].shape[1], 4, scale=0.5)
        return _call(
            "torch.einsum",
            [x, w],
        )[0].replace("(", "('bchw,ck->bkhw', "), [x, w]
    if kind == "addmm":
        x = draft.pick(lambda each: each.dim() == 2)
        size = draft.values[x].shape[-1]
        return _call(
            "torch.addmm", [draft.parameter(6), x, draft.parameter(size, 6, scale=1 / math.sqrt(size))]
        )
    if kind == "baddbmm":
        x = draft.pick(lambda each: each.dim() == 3)
        batch, _, size = draft.values[x].shape
        return _call(
            "torch.baddbmm", [draft.parameter(batch, 1, 4), x, draft.parameter(batch, size, 4, scale=0.3)]
        )
    x = draft.pick(lambda each: each.dim() >= 2)
    size = draft.values[x].shape[-1]
    if kind == "matmul":
        return "{} @ {}", [x, draft.parameter(size, 6, scale=1 / math.sqrt(size))]
    return f"torch.matmul({{0}}, {{0}}.transpose(-1, -2)) / {size}", [x]


def layer_norm(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() >= 2 and each.shape[-1] > 2)
    axes = draft.draw.choice((1, 1, 2))
    size = tuple(draft.values[x].shape[-axes:])
    reads = [x, *(draft.parameter(*size) for _ in range(draft.draw.choice((0, 1, 2, 2))))]
    options = dict(zip(("weight", "bias"), ("{}", "{}"), strict=True))
    given = "".join(f", {name}={{}}" for name in list(options)[: len(reads) - 1])
    return f"functional.layer_norm({{}}, {size}{given})", reads


def channel_norm(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() in (3, 4, 5) and 1 < each.shape[1] < each.numel() / 3)
    channels = draft.values[x].shape[1]
    affine = [draft.parameter(channels), draft.parameter(channels)] if draft.chance(0.7) else []
    given = ", weight={}, bias={}" if affine else ""
    kind = draft.draw.choice(("batch", "batch", "batch", "group", "instance"))
    if kind == "batch":
        mean = draft.declare("buffer", (channels,), scale=0.5)
        variance = draft.declare("buffer", (channels,), fill="variance")
        trains = draft.chance(0.3)
        return f"functional.batch_norm({{}}, {{}}, {{}}{given}, training={trains})", [
            x,
            mean,
            variance,
            *affine,
        ]
    if kind == "group":
        groups = draft.draw.choice([each for each in (1, 2, channels) if channels % each == 0])
        return f"functional.group_norm({{}}, {groups}{given})", [x, *affine]
    return f"functional.instance_norm({{}}{given})", [x, *affine]


def pool(draft: Draft) -> Line:
    rng = draft.draw
    x = draft.pick(lambda each: each.dim() in (3, 4, 5))
    rank = draft.values[x].dim() - 2
    kind = rng.choice(
        ("max", "max", "avg", "avg", "adaptive_avg", "adaptive_avg", "adaptive_max", "interpolate")
    )
    if kind == "interpolate":
        return "functional.interpolate({}, scale_factor=2, mode='nearest')", [x]
    if kind.startswith("adaptive"):
        return f"functional.{kind}_pool{rank}d({{}}, {rng.choice((1, 1, 2, 3))})", [x]
    kernel = rng.choice((2, 3))
    stride, padding = rng.choice((1, 2)), rng.choice((0, 1))
    more = rng.choice(("", "", ", ceil_mode=True", ", count_include_pad=False" if kind == "avg" else ""))
    return f"functional.{kind}_pool{rank}d({{}}, {kernel}, {stride}, {padding}{more})", [x]


_UNARY = (
    *(
        "functional.relu({})",
        "{0} * {0}.sigmoid()",
        "functional.gelu({})",
        "functional.gelu({}, approximate='tanh')",
    ),
    *("functional.silu({})", "{}.sigmoid()", "{}.tanh()", "functional.hardswish({})", "functional.relu6({})"),
    *(
        "functional.hardtanh({})",
        "functional.leaky_relu({}, 0.1)",
        "functional.elu({})",
        "functional.softplus({})",
    ),
    *(
        "{}.clamp(min=-0.5)",
        "{}.clamp(-1, 1)",
        "{}.abs()",
        "-{}",
        "{} * 0.5",
        "{} + 1",
        "2 - {}",
        "{}.square()",
    ),
    *(
        "{}.clamp(-3, 3).exp()",
        "({}.abs() + 1).sqrt()",
        "{}.softmax(-1)",
        "{}.log_softmax(-1)",
        "{}.softmax(1)",
    ),
    *("torch.where({0} > 0, {0}, {0} * 0.1)", "{}.masked_fill({0} < 0, 0.0)", "{0} * {0}.mean()"),
)


def pointwise(draft: Draft) -> Line:
    code = draft.draw.choice(_UNARY).replace("{}", "{0}")
    return code, [draft.pick()]


def arithmetic(draft: Draft) -> Line:
    x = draft.pick()
    tensor = draft.values[x]
    others = [
        name
        for name, each in draft.values.items()
        if name != x
        and each.is_floating_point()
        and (each.shape == tensor.shape or draft.chance(0.3))
        and _fits(each, tensor)
    ]
    if not others or draft.chance(0.2):
        shape = draft.draw.choice(
            (tuple(tensor.shape[-1:]), (tensor.shape[0], *(1,) * (tensor.dim() - 1)), tuple(tensor.shape))
        )
        others = [draft.parameter(*shape)]
        if tensor.dim() > 2 and draft.chance(0.5):
            others = [draft.parameter(tensor.shape[1], *(1,) * (tensor.dim() - 2))]
    code = draft.draw.choice(
        ("{} + {}", "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "{} / ({}.abs() + 1)")
    )
    if draft.chance(0.1):
        code = "torch.add({}, {}, alpha=0.5)"
    if draft.chance(0.1):
        code = "torch.where({0} > {1}, {0}, {1})"
    return code, [x, draft.draw.choice(others)]


def _fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True


def reduction(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() >= 2)
    axes = draft.draw.choice((-1, 1, (-2, -1), (-1,), 0))
    keep = draft.chance(0.5)
    name = draft.draw.choice(("mean", "mean", "sum", "amax", "logsumexp"))
    return f"{{}}.{name}({axes}, keepdim={keep})", [x]


def view(draft: Draft) -> Line:
    rng = draft.draw
    x = draft.pick()
    tensor = draft.values[x]
    shape, axes = list(tensor.shape), tensor.dim()
    axis = rng.randrange(axes) if axes else 0
    extent = shape[axis] if axes else 1
    first, second = (rng.randrange(axes), rng.randrange(axes)) if axes else (0, 0)
    order = tuple(rng.sample(range(axes), axes))
    size = max(1, extent // 2)
    codes = [
        *(
            f"{{}}.transpose({first}, {second})",
            f"{{}}.permute{order}" if axes > 1 else "{}.detach()",
            "{}.detach()",
        ),
        *(
            f"{{}}.select({axis}, {extent - 1})",
            f"{{}}.narrow({axis}, 0, {size})",
            f"{{}}.narrow({axis}, {extent - size}, {size})",
        ),
        *(
            "{}.flatten(1)",
            "{}.flatten()",
            "{}.squeeze()",
            f"{{}}.squeeze({axis})",
            f"{{}}.unsqueeze({axis})",
        ),
        *("{}.view(-1)", f"{{}}.reshape({shape[0] if axes else 1}, -1)", f"{{}}.reshape({shape[::-1]})"),
        *(
            "{}.mT",
            "{}.contiguous()",
            "{0}.to({0}.dtype)",
            "{0}.view_as({0})",
            "{0}.expand_as({0})",
            "{0}[...]",
        ),
        *(
            f"{{}}.diagonal(0, {first}, {second})",
            f"{{}}.unfold({axis}, {size}, 1)",
            f"{{}}.movedim({first}, {second})",
        ),
        *(f"{{}}.expand(2, *{shape})", f"{{}}.unsqueeze({axis}).expand(*{shape[:axis]}, 3, *{shape[axis:]})"),
        *("{}[::2]", "{}[..., 1:]", "{}[:, :1]", "{}[0]", f"{{}}[:, {min(1, extent - 1)}]", "{}[..., ::2]"),
        f"{{}}.as_strided({[size, 2]}, {[1, 1]}, {rng.randrange(3)})",
        f"{{}}.unflatten({axis}, ({extent // 2}, 2))" if extent % 2 == 0 else "{}.t()",
    ]
    return rng.choice(codes), [x]


def views(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() > 1 and any(extent in (2, 4, 6) for extent in each.shape))
    shape = draft.values[x].shape
    axis = draft.draw.choice([at for at, extent in enumerate(shape) if extent in (2, 4, 6)])
    half = shape[axis] // 2
    if shape[axis] == 2 and draft.chance(0.5):
        return f"{{}}.unbind({axis})", [x], 2
    code = draft.draw.choice(
        (f"{{}}.chunk(2, {axis})", f"{{}}.split({half}, {axis})", f"{{}}.tensor_split(2, {axis})")
    )
    return code, [x], 2


def gather(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() > 1)
    shape = draft.values[x].shape
    axis = draft.draw.randrange(len(shape))
    index = draft.declare("buffer", (3,), fill="index", limit=shape[axis])
    full = ", ".join([":"] * axis)
    code = draft.draw.choice(
        (
            f"{{}}.index_select({axis}, {{}})",
            f"{{}}[{full}{', ' if full else ''}{{}}]",
            "{}.flip(0)",
            "{}.roll(1, -1)",
            "functional.pad({}, (1, 1))",
        )
    )
    return (code, [x, index]) if code.count("{}") == 2 else (code, [x])


def joined(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() > 0)
    shape = draft.values[x].shape
    same = [name for name, each in draft.values.items() if each.shape == shape and each.is_floating_point()]
    chosen = [x, draft.draw.choice(same)]
    axis = draft.draw.randrange(len(shape))
    return draft.draw.choice(
        (f"torch.cat([{{}}, {{}}], {axis})", f"torch.stack([{{}}, {{}}], {axis})")
    ), chosen


def in_place(draft: Draft) -> Line:
    x = draft.pick()
    tensor = draft.values[x]
    same = [
        name for name, each in draft.values.items() if each.shape == tensor.shape and each.is_floating_point()
    ]
    other = draft.draw.choice(same)
    codes = (
        *(
            "{0}.relu_()",
            "{0}.sigmoid_()",
            "{0}.mul_(0.5)",
            "{0}.add_(1.0)",
            "{0}.add_({1})",
            "{0}.copy_({1})",
        ),
        *("{0}.clamp_(-1, 1)", "{0}[:1] = {1}[:1]", "{0}[..., ::2] = 0.5", "{0}[:, 0] = {1}[:, -1]"),
        *(
            "{0}[0].zero_()",
            "{0}.masked_fill_({1} > 0, 0.25)",
            "{0}.flatten()[:2] = 1.0",
            "{0}[..., -1].mul_(2)",
        ),
    )
    code = draft.draw.choice(codes)
    if code.endswith("_()") and "[" not in code and draft.chance(0.3):
        return code, [x], 1
    return code, [x, other] if "{1}" in code else [x], 0


def buffer_update(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() > 1)
    b = draft.declare("buffer", tuple(draft.values[x].shape[-1:]), scale=0.5)
    axes = tuple(range(draft.values[x].dim() - 1))
    code = draft.draw.choice(
        (
            f"{{0}}.add_({{1}}.detach().mean({axes}))",
            f"{{0}}.mul_(0.9).add_({{1}}.detach().sum({axes}), alpha=0.1)",
        )
    )
    return code, [b, x], 0


def use_of_parameter(draft: Draft) -> Line:
    names = [each.name for each in draft.declared if each.role != "input" and each.fill == "normal"]
    if not names:
        raise Unfit
    return draft.draw.choice(("{}[:1]", "{}.detach()", "{}.view(-1)", "{} * 2", "{}.unsqueeze(0)")), [
        draft.draw.choice(names)
    ]


def complex_view(draft: Draft) -> Line:
    x = draft.pick(lambda each: each.dim() > 0)
    if draft.type != "f32":
        raise Unfit
    return draft.draw.choice(
        (
            "torch.complex({0}, {0}.sin()).real",
            "torch.complex({0}, {0}).imag",
            "torch.view_as_real(torch.complex({0}, {0}))",
            "torch.view_as_complex({0}.reshape(-1, 2)).conj()",
            "torch.view_as_complex({0}.reshape(-1, 2)).real",
        )
    ), [x]


def graph_break(draft: Draft) -> Line:
    return "torch._dynamo.graph_break()", [], 0
