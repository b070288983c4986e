"""Compare profiles with the datatrove filters that they are named after, as released, with their own splitters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from tests.agreement.peer import DATATROVE_REASONS

Filter = tuple[str, str, dict[str, Any]]
_REPETITION: Filter = ("gopher_repetition_filter", "GopherRepetitionFilter", {})
_QUALITY: Filter = ("gopher_quality_filter", "GopherQualityFilter", {})
_C4: Filter = ("c4_filters", "C4QualityFilter", {})
_C4_FINEWEB: Filter = ("c4_filters", "C4QualityFilter", {"filter_no_terminal_punct": False})
_FINEWEB: Filter = ("fineweb_quality_filter", "FineWebQualityFilter", {})

#: Profiles and their filters in datatrove 0.10, in their order: each gets the text that the one before it leaves.
FILTERS: dict[str, tuple[Filter, ...]] = {
    "gopher/datatrove": (_REPETITION, _QUALITY),
    "c4/datatrove": (_C4,),
    "c4/fineweb": (_C4_FINEWEB,),
    "fineweb/datatrove": (_FINEWEB,),
    "fineweb/pipeline": (_REPETITION, _QUALITY, _C4_FINEWEB, _FINEWEB),
}


def released(profile: str) -> Callable[[str], tuple[str, str]]:
    """The filters of a profile as a function: the reason, under our name, or "keep"; and the text that they leave."""
    from datatrove.data import Document

    made = [
        getattr(import_module(f"datatrove.pipeline.filters.{module}"), name)(**options)
        for module, name, options in FILTERS[profile]
    ]

    def judge(text: str) -> tuple[str, str]:
        document = Document(text=text, id="0")
        for one in made:
            verdict = one.filter(document)
            if verdict is not True:
                return DATATROVE_REASONS.get(verdict[1], verdict[1]), document.text
        return "keep", document.text

    return judge


def judged(texts: Sequence[str]) -> dict[str, list[str]]:
    """Reasons by profile. All profiles judge a text before the next one comes: datatrove remembers its words."""
    judges = {profile: released(profile) for profile in ("gopher/datatrove", "fineweb/datatrove", *FILTERS)}
    found: dict[str, list[str]] = {profile: [] for profile in judges}
    for text in texts:
        for profile, judge in judges.items():
            found[profile].append(judge(text)[0])
    return found
