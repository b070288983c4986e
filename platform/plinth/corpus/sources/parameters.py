"""Sources of documents: location, terms, extraction, normalization."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, OneValue, internal, spelling

#: Answers that state no license (SPDX 2.3, clause 8.13 and 8.15), and none at all.
NO_LICENCE = ("", "unknown", "none", "noassertion")
LICENCE_WORD = re.compile(r"[()]|[A-Za-z0-9.+:-]+")
#: E-mail addresses that Dagster accepts as owners of assets.
EMAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
LICENCE_OPERATORS = ("AND", "OR", "WITH")


class Terms(Frozen):
    """Uses that the owner of a source permits. Required: unknown is refused, not defaulted."""

    train: bool = Field(description="The owner allows training.")
    redistribute: bool = Field(description="The owner allows redistribution of the text.")
    commercial: bool = Field(description="The owner allows commercial use of the result.")


class Source(Frozen):
    """Files of one format, with metadata shared by their documents."""

    kind: str = Field(
        description="Reader: `warc`, `html`, `pdf`, `latex`, `jsonl`, `parquet`, `text`, `tree`, `teacher` (a model of "
        "this workspace writes it), or the name of an installed one.",
        json_schema_extra={"examples": ["warc", "html", "pdf", "latex", "jsonl", "parquet", "text", "tree", "teacher"]},
    )
    path: str = Field(
        description="File, folder, glob or URI (`s3://`, `https://`, `hf://`, `cc://`); relative to the workspace's "
        "`input/`. For `teacher`, a model, as in `training.distillation.teacher`."
    )
    licence: str = Field(description="SPDX expression, or `per-document` if each record has its own license.")
    terms: Terms = Field(description="Owner's terms.")
    domain: str = Field(description="Origin: a host name or a short name.")
    snapshot: str = Field(description="Crawl or capture, such as `2026-46`.")
    fields: Mapping[Literal["text", "uri", "date", "licence"], Annotated[str, Field(min_length=1)]] = spelling(
        {},
        description="JSONL and Parquet: fields that hold the `text` (by default `text`), the `uri` (`uri`, `url`), the "
        "`date` (`captured_at`, `date`, `timestamp`, `created`) and the `licence` (`licence`, `license`); `a.b` reads "
        "`b` inside `a`.",
    )
    text_field: str = internal("text", min_length=1, description="Field of the text.")
    uri_field: str = internal("", description="Field of the address; empty: the usual ones.")
    date_field: str = internal("", description="Field of the date; empty: the usual ones.")
    licence_field: str = internal("", description="Field of the license; empty: the usual ones.")
    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of an installed reader, or of `teacher`: `documents`, `max_tokens`, `temperature`, "
        "`top_p`, `seed`; other built-in ones have none.",
    )
    suffixes: tuple[str, ...] = Field(
        (), description="Tree and text: file name suffixes to read, case-insensitive; empty: all."
    )
    hidden: bool = Field(
        False,
        exclude_if=lambda given: not given,
        description="Also read hidden files: names that begin with a dot, editor backups, `__MACOSX`. Otherwise they "
        "are only counted.",
    )
    repair_boundaries: bool = Field(
        False,
        description="For text from scans and e-books (`pdf` always): repair words and paragraphs cut at line and page "
        "ends, and sentences glued together. Not for code.",
    )

    @field_validator("licence")
    @classmethod
    def _states_a_licence(cls, licence: str) -> str:
        if licence.strip().lower() in NO_LICENCE:
            raise ValueError("the license is missing; write the owner's SPDX expression, or `per-document`")
        if not _is_expression(licence):
            raise ValueError(f"{licence!r} is not an SPDX expression such as `MIT` or `Apache-2.0 WITH LLVM-exception`")
        return licence

    @model_validator(mode="after")
    def _named(self) -> Source:
        """`fields` as the parameters that readers know."""
        for name, field in self.fields.items():  # within validation, before the record is in use
            object.__setattr__(self, f"{name}_field", field)
        return self

    @model_validator(mode="after")
    def _keeps_code(self) -> Source:
        if self.kind == "tree" and self.repair_boundaries:
            raise ValueError("repair_boundaries would damage source code: remove it for `kind: tree`")
        return self


class Bucket(Frozen):
    """Sources that are filtered, measured and weighted together."""

    description: str = Field(description="Description of the bucket, in one sentence.")
    owner: str = Field(min_length=1, description="E-mail address or team responsible for the bucket.")
    sources: tuple[Source, ...] = Field(min_length=1, description="Files to read, in this order.")
    policy: str = Field("default", description="Name of the policy for its documents.")

    @model_validator(mode="after")
    def _written_by_one(self) -> Bucket:
        if len(self.sources) > 1 and any(source.kind == "teacher" for source in self.sources):
            raise ValueError("a `teacher` must be the only source of its bucket, since its text has its own lineage")
        return self

    @field_validator("owner")
    @classmethod
    def _can_be_reached(cls, owner: str) -> str:
        if "@" in owner and not EMAIL.fullmatch(owner):
            raise ValueError(
                f"{owner!r} is no e-mail address that Dagster accepts, such as `corpus@example.org` (the last part has "
                "two to seven letters); a team is written without `@`"
            )
        return owner


class Extraction(OneValue):
    """Extractor of the main content of HTML."""

    engine: Literal["resiliparse", "trafilatura"] = Field(
        "resiliparse",
        description="`resiliparse` is fast; `trafilatura` is ten times slower and removes more boilerplate.",
    )
    seconds_per_page: float = internal(5.0, gt=0, description="CPU time limit per page; slower pages become rejects.")
    max_bytes: int = internal(
        16 * 2**20, gt=0, description="Maximum size of a page or record; larger ones become rejects (`too-large`)."
    )


class Normalisation(Frozen):
    """Unicode NFC, mojibake, control characters, whitespace, line ends."""

    repair_mojibake: bool = Field(True, description="Repair text that was decoded with the wrong encoding (ftfy).")
    strip_invisible: bool = Field(
        True,
        description="Remove soft hyphens and zero-width characters where they carry no meaning, controls that reorder "
        "text, and tag characters.",
    )
    max_blank_lines: int = Field(2, ge=0, description="Maximum consecutive blank lines; longer runs are shortened.")


class Documents(Frozen):
    """Parts of documents, and damage that is tolerated."""

    part_bytes: int = Field(128 * 2**20, gt=0, description="Target source bytes per part.")
    max_reject_rate: float = Field(
        0.05, ge=0, le=1, description="Maximum share of damaged records; above it, the stage fails."
    )
    extraction: Extraction = Extraction()
    normalisation: Normalisation = internal(Normalisation(), description="Unicode NFC, whitespace, line ends.")


def _is_expression(licence: str) -> bool:
    """Return True if a license is a valid SPDX expression: identifiers, operators, closed parentheses (SPDX 2.3, annex
    D)."""
    words = LICENCE_WORD.findall(licence)
    if "".join(words) != "".join(licence.split()):
        return False
    depth, wanted = 0, True  # is an identifier wanted next, or an operator?
    for word in words:
        if word == "(" and wanted:
            depth += 1
        elif word == ")" and not wanted and depth:
            depth -= 1
        elif word in "()" or (word.upper() in LICENCE_OPERATORS) == wanted:
            return False
        else:
            wanted = not wanted
    return not wanted and not depth


def source_of(sources: Sequence[Mapping[str, Any]], domain: str | None, snapshot: str) -> int | None:
    """Return the index of the only source with this domain and snapshot; None if several or none match."""
    fitting = [i for i, one in enumerate(sources) if (one.get("domain"), one.get("snapshot")) == (domain, snapshot)]
    return fitting[0] if len(fitting) == 1 else None


class Matching(Frozen):
    """Comparison of records with entries of the lists."""

    simhash_distance: int = internal(
        3, ge=0, le=11, description="Maximum distance, in bits of 64, of a text's SimHash from a listed one."
    )
    shingle_words: int = internal(3, ge=1, le=16, description="Words per shingle of the SimHash; must match the lists.")
    phash_distance: int = internal(
        3, ge=0, le=11, description="Maximum distance, in bits of 64, of an image's perceptual hash from a listed one."
    )
    min_keywords: int = internal(
        1, ge=1, description="Minimum distinct keywords in a text for a hit; use more for lists of single words."
    )
    disguised: bool = Field(False, description="Also match obfuscated keywords (`h3ll0`, `h.e.l.l.o`).")


class Illegal(Matching):
    """Gate of the documents stage: what it hits is reported and never stored."""

    lists: str | None = Field(None, description="Name of the lists in `corpus.lists`; `null`: no gate.")
    keep_uri: bool = Field(
        False, description="Include the address of a hit in reports, instead of its SHA-256 and host."
    )
