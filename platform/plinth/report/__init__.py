"""Results made to be looked at: plots, and one self-contained page without external resources or scripts.

    style     palette (safe for colour-blind readers), sizes, numbers as people write them
    figures   matplotlib figures: funnel, mixture, loss, bits per byte, histogram
    plots     the same figures as PNG bytes, for Dagster's metadata
    render    figures as PNG, or as SVG that follows the page's light and dark theme
    data      what a page shows: plain records that the caller fills from manifests' statistics
    page      `page(data) -> str`

Does not belong here: reading manifests, runs or registries.
"""

from plinth.report.data import ReportData
from plinth.report.page import page

__all__ = ["ReportData", "page"]
