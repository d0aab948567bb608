"""What pages share: one self-contained file with style, scripts, plotly and data, which works offline."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from dispatch_profiler.console.plurals import counted, plural
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.report.html.style import plotly_script

if TYPE_CHECKING:
    import jinja2

#: Larger integers become text, because JavaScript rounds them.
_LARGEST_EXACT = 2**53


def render(template: str, script: str, data: Mapping[str, Any], **values: object) -> str:
    """The text of a page: `template` with `values`. Its `script` reads `data`."""
    from markupsafe import Markup  # installed with jinja2

    scripts = ("report_table.js", "report_figures.js", script)
    return (
        _environment()
        .get_template(template)
        .render(
            counted=counted,
            plural=plural,
            style=Markup(_file("report.css")),
            theme=Markup(_file("report_theme.js")),
            script=Markup("".join(map(_file, scripts))),
            plotly=Markup(_packed_plotly()),
            data=Markup(script_json(data)),
            **values,
        )
    )


def origin(records: Sequence[StoredRecord]) -> str:
    """Machine, device and dates: `AMD EPYC 7B13, 2 cores; local-task; 2026-11-20`."""
    provenances = [record.provenance for record in records]
    days = sorted({origin.when[:10] for origin in provenances if origin.when})
    parts = (
        _few([origin.machine.name for origin in provenances], "machines"),
        _few([origin.device for origin in provenances], "devices"),
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
    )
    return "; ".join(filter(None, parts))


def _few(names: Sequence[str], what: str) -> str:
    """Up to two distinct names, else their number."""
    distinct_names = list(dict.fromkeys(filter(None, names)))
    return " and ".join(distinct_names) if len(distinct_names) < 3 else f"{len(distinct_names)} {what}"


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only required for rendering

    return jinja2.Environment(
        loader=jinja2.PackageLoader("dispatch_profiler", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # names, reasons and tags are untrusted
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    return (resources.files("dispatch_profiler") / "templates" / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """plotly's JavaScript, compressed from 1.4 to 0.7 MB, so that it is not parsed before the first figure."""
    return base64.b64encode(gzip.compress(plotly_script().read_bytes(), 9, mtime=0)).decode()


def script_json(value: Any) -> str:
    """JSON for a <script> element, which nothing in it can end.

    `</script>` -> `\\u003c/script\\u003e`; NaN and infinities become text.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if type(value) is int and abs(value) > _LARGEST_EXACT:
        return str(value)
    return value
