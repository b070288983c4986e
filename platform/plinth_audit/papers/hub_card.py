"""The README of a folder that the Hugging Face Hub reads: front matter, then the data card.

The keys are those of the Hub's dataset cards (https://huggingface.co/docs/hub/datasets-cards); `configs` name a data
set for each bucket, and one of all buckets that `load_dataset` takes unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Licences that the Hub has an identifier for, which is the SPDX identifier in small letters
#: (https://huggingface.co/docs/hub/repositories-licenses). All else is `other`, with its name.
HUB_LICENCES = """
apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gfdl isc
lppl-1.3c ms-pl mpl-2.0 odc-by odbl ofl-1.1 osl-3.0 postgresql ncsa unlicense wtfpl zlib agpl-3.0 gpl-2.0 gpl-3.0
lgpl-2.1 lgpl-3.0 pddl
"""
_SUFFIXES = ("-only", "-or-later")
_OTHER_NAMES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}
#: A language is named where at least one document in so many is in it.
LANGUAGE_SHARE = 1000
_STEPS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


@dataclass(frozen=True)
class CardFacts:
    """What the front matter says.

    Args:
        name: of the corpus.
        files: by bucket, the pattern of its files.
        counts: of all files: `documents`, `text_bytes`, `licences` and `languages` with their documents.
    """

    name: str
    files: Mapping[str, str]
    counts: Mapping[str, Any]


def hub_card(facts: CardFacts, page: str) -> str:
    """Front matter and the page of the data card."""
    import yaml

    counts = facts.counts
    codes = language_codes(counts.get("languages", {}), counts["documents"])
    front: dict[str, Any] = {"pretty_name": facts.name, **({"language": codes} if codes else {})}
    front |= licence_keys(counts.get("licences", {}))
    front |= {"size_categories": [size_category(facts.counts["documents"])], "task_categories": ["text-generation"]}
    front["configs"] = [_config(name, pattern) for name, pattern in _patterns(facts.files).items()]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n{page}"


def size_category(documents: int) -> str:
    """The Hub's words for a number of rows: `n<1K`, `1K<n<10K`, … `n>1T`."""
    place = next((i for i in range(len(_STEPS)) if documents < 10 ** (3 + i)), len(_STEPS))
    if place == 0:
        return f"n<{_STEPS[0]}"
    return f"{_STEPS[place - 1]}<n<{_STEPS[place]}" if place < len(_STEPS) else f"n>{_STEPS[-1]}"


def hub_licence(licence: str) -> str:
    """The Hub's identifier of an SPDX identifier, or `other`."""
    known = licence.lower()
    for suffix in _SUFFIXES:
        known = known.removesuffix(suffix)
    known = _OTHER_NAMES.get(known, known)
    return known if known in HUB_LICENCES.split() else "other"


def licence_keys(licences: Iterable[str]) -> dict[str, Any]:
    """`license`, and `license_name` of those that the Hub has no identifier for."""
    own = sorted(licences)
    known = sorted({hub_licence(one) for one in own})
    named = {"license": known[0] if len(known) == 1 else known} if known else {}
    unknown = [one for one in own if hub_licence(one) == "other"]
    return named | ({"license_name": ", ".join(unknown)} if unknown else {})


def language_codes(languages: Mapping[str, int], documents: int) -> list[str]:
    """Codes of two or three letters, the most frequent first; of those with one document in `LANGUAGE_SHARE` or more.

    Args:
        languages: documents by label, such as `eng_Latn`.
        documents: of all languages.
    """
    found = dict[str, int]()
    for label, own in languages.items():
        code = label.partition("_")[0]
        if len(code) in (2, 3) and code.isascii() and code.isalpha():
            found[code] = found.get(code, 0) + own
    shown = [code for code, n in found.items() if n * LANGUAGE_SHARE >= documents]
    return sorted(shown, key=lambda code: (-found[code], code))


def _patterns(files: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Patterns by name of a data set: all buckets, where there are several, and each."""
    whole = {"default": list(files.values())} if len(files) > 1 and "default" not in files else {}
    return {**whole, **files}


def _config(name: str, pattern: str | list[str]) -> dict[str, Any]:
    return {"config_name": name, "data_files": [{"split": "train", "path": pattern}]}
