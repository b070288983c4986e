"""The page of an evaluation: HTML and inline SVG, nothing loaded, nothing executed."""

from __future__ import annotations

from plinth.report.evaluation import figures
from plinth.report.evaluation.data import EvaluationData, Section
from plinth.report.page import safe_link, template
from plinth.report.render import svg


def page(data: EvaluationData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    plots = {section.key: _plots(section) for section in data.sections}
    return template("evaluation/page.html.j2").render(data=data, plots=plots, safe_link=safe_link)


def _plots(section: Section) -> list[str]:
    """The figures of a section, in the order of its groups."""
    made = [svg(figures.intervals, [group], title=group.title) for group in section.groups]
    return made + [svg(figures.curves, group, title=group.title) for group in section.curves]
