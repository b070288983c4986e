"""Results made to be looked at: plots, and self-contained pages that load nothing.

    style     palette (safe for colour-blind readers), sizes, numbers as people write them
    figures   matplotlib figures: funnel, mixture, loss, bits per byte, histogram
    plots     the same figures as PNG bytes, for Dagster's metadata
    render    figures as PNG, or as SVG that follows the page's light and dark theme
    data      what a page shows: plain records that the caller fills from manifests' statistics
    page      `page(data) -> str`

Of one training run:
    course_of_run   its timeline as series over one axis, and what it cost
    panels          series as SVG panels
    streams         the streams of a mixture, as many as can be told apart
    run_page        `page(events, about) -> str`; a script of it reads values out at the pointer

Does not belong here: reading manifests, runs or registries.
"""

from plinth.report.data import ReportData
from plinth.report.page import page

__all__ = ["ReportData", "page"]
