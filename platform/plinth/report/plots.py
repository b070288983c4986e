"""Figures as PNG bytes, for metadata that people look at in Dagster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plinth.report import figures
from plinth.report import mixture_plot as figure_of_course
from plinth.report import sankey as figure_of_sankey
from plinth.report.render import png


def funnel(stats: Mapping[str, Any]) -> bytes:
    """What is left after each stage, by bucket, from the statistics of the `funnel` asset."""
    return png(figures.funnel, stats)


def sankey(stats: Mapping[str, Any]) -> bytes:
    """The stream of documents and what each stage and reason takes of it, by bucket."""
    return png(figure_of_sankey.figure, stats)


def mixture(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Planned and realised shares; rows have phase, bucket, weight, share."""
    return png(figures.mixture, rows)


def mixture_course(rows: Sequence[Mapping[str, Any]], sequence_tokens: int) -> bytes:
    """Realised and planned shares along the run, from `tokens.realised.course`."""
    return png(figure_of_course.figure, rows, sequence_tokens)


def loss(steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Loss and learning rate by step, with what happened to the run marked; rows are events of the timeline."""
    return png(figures.loss, steps, events)


def bits_per_byte(slices: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Model, trigram and gzip on every slice."""
    return png(figures.bits_per_byte, slices)


def histogram(edges: Sequence[float], counts: Sequence[float], *, label: str, log: bool = False) -> bytes:
    """Counts between `len(counts) + 1` edges; `label` names the axis with its unit."""
    return png(figures.histogram, edges, counts, label=label, log=log)
