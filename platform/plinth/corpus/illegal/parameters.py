"""The illegal-content gate: which lists, and how near a record may come to an entry."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal


class Matching(Frozen):
    """Comparison of records with entries of the lists."""

    simhash_distance: int = internal(
        3, ge=0, le=11, description="Bits of 64 in which a text's SimHash may differ from a listed one."
    )
    shingle_words: int = internal(3, ge=1, le=16, description="Words of a shingle of the SimHash; the lists' own.")
    phash_distance: int = internal(
        3, ge=0, le=11, description="Bits of 64 in which an image's perceptual hash may differ from a listed one."
    )
    min_keywords: int = internal(
        1, ge=1, description="Different keywords that a text must hold to be a hit; lists of single words need more."
    )
    disguised: bool = Field(False, description="Whether keywords are found in disguise, too (`h3ll0`, `h.e.l.l.o`).")


class Illegal(Matching):
    """Gate of the documents stage: what it hits is reported and never stored."""

    lists: str | None = Field(None, description="Name of the lists in `corpus.lists`; `null`: there is no gate.")
    keep_uri: bool = Field(
        False, description="Whether reports name the address of a hit; otherwise its SHA-256 and its host."
    )
