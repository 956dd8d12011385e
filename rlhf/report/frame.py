"""What all pages have alike: the head that forbids any request, the looks, and what draws the charts."""

from __future__ import annotations

import base64
import gzip
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlhf.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment


class MissingPackage(UserError):
    """What draws the page is not installed."""


def environment(package: str, *filters: Callable[..., Any]) -> Environment:
    """Templates of a package, which may extend ``frame.html.j2``.

    Args:
        package: Where the templates are, by its dotted name.
        filters: What they may call, by the names of the functions.

    Raises:
        MissingPackage: a package that draws pages is not installed.
    """
    for name in ("jinja2", "plotly"):
        if find_spec(name) is None:
            raise MissingPackage(f"report: not written, the package {name} is missing; pip install 'rlhf[report]'")
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("rlhf.report", ".")])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters |= {function.__name__: function for function in filters}
    return made


def frame(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the frame is filled with.

    Args:
        data: What the script draws: ``charts`` by key, and ``tokens``.
    """
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    own = files("rlhf.report")
    return {
        "data": data,
        "written": datetime.now().astimezone(),
        "style": Markup(own.joinpath("page.css").read_text(encoding="utf-8")),
        "script": Markup(own.joinpath("page.js").read_text(encoding="utf-8")),
        # Compressed, the library of the charts is 2 MB of the page instead of 5.
        "plotly": base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),
        "nonce": secrets.token_urlsafe(16),
    }
