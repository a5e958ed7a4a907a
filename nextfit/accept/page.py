"""Scores of a run as one HTML page with plots, which needs nothing beside itself."""

from __future__ import annotations

from datetime import date
from importlib.resources import files
from typing import Any


def page(values: dict[str, Any]) -> str:
    """The page of what `tasks.run` returned."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(files("nextfit.accept").joinpath("page.html").read_text("utf-8"))
    retrieval = [t for t in values["tasks"] if t["task"].startswith("retrieval")]
    return template.render(v=values, retrieval=retrieval, date=date.today(), percent="{:.0%}".format)
