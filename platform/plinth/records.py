"""Records that flow between stages: plain data with a stable identity.

    Blob      stored bytes, identified by content: md5 is the address (DVC layout), sha256 proves integrity
    Part      one blob of a manifest, with its row count and statistics
    Manifest  an ordered list of parts, the step that produced them, the digests of its inputs
    Step      a named, versioned pure function with frozen parameters; provides cache keys

Asset keys are written with slashes (`web/documents`, `dedup/minhash`) everywhere but in Dagster.
Does not belong here: the columns of tables (`plinth.storage.parts`), because every process imports this module and few
need Arrow.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from plinth import fingerprint

#: Marks a schema field that no recipe sets.
INTERNAL = "internal"

#: Marks a schema field that is an alternative form of internal ones.
SPELLING = "spelling"


class Frozen(BaseModel):
    """Base class of all records and parameters: immutable; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def internal(default: Any, *, description: str, **constraints: Any) -> Any:
    """Declare a stage parameter that recipes cannot set.

    The parameter is part of the model, its dump and identities. It is missing from the reference and the schema, and
    the loader refuses it.
    """
    return Field(default, description=description, json_schema_extra={INTERNAL: True}, **constraints)


def is_internal(field: FieldInfo) -> bool:
    """Return True if a field was declared by `internal`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and INTERNAL in extra


def spelling(default: Any, *, description: str, **constraints: Any) -> Any:
    """Declare a recipe key from which a validator of the model computes internal parameters.

    The key is missing from dumps and identities, but it is written when the recipe is written.
    """
    return Field(default, description=description, exclude=True, json_schema_extra={SPELLING: True}, **constraints)


def is_spelling(field: FieldInfo) -> bool:
    """Return True if a field was declared by `spelling`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and SPELLING in extra


class OneValue(Frozen):
    """Section with a single field that recipes set. A recipe can write its value without a key, as in `mup: 256`; in
    the dump it is a section."""

    @classmethod
    def key(cls) -> str:
        """Return the field that a recipe sets."""
        return next(name for name, field in cls.model_fields.items() if not is_internal(field))

    @model_validator(mode="before")
    @classmethod
    def _from_value(cls, given: Any) -> Any:
        return given if isinstance(given, Mapping | OneValue) else {cls.key(): given}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(handler(core))
        value: JsonSchemaValue = whole["properties"][cls.key()]
        return value


#: Type of names that become part of asset keys, file names, MLflow metrics and tags.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]


class Blob(Frozen):
    """Stored content. `md5` is its address in the content store; `sha256` proves its integrity."""

    md5: str = Field(pattern=r"^[0-9a-f]{32}$")  # used in file names
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Part(Frozen):
    """Blob of a manifest. `name` is relative and unique in the manifest, like `part-00003.parquet`."""

    name: str
    blob: Blob
    rows: int = 0
    stats: Mapping[str, Any] = Field(default_factory=dict)


_NUMBERED = re.compile(r"(.*-)(\d{5,})\.parquet")


class Manifest(Frozen):
    """Output of a stage: its parts in order, the step, and its inputs by digest.

    `digest` covers all fields, so a manifest proves its whole ancestry.
    """

    asset: str
    step: str
    version: str
    params: Mapping[str, Any]
    libraries: Mapping[str, str] = Field(default_factory=dict, exclude_if=lambda given: not given)
    inputs: Mapping[str, str]  # asset key -> manifest digest, or source key -> inventory digest
    parts: tuple[Part, ...]
    stats: Mapping[str, Any] = Field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        return fingerprint.digest(self)

    @classmethod
    def parse(cls, canonical: bytes) -> Manifest:
        """Parse a manifest from its canonical form, whose SHA-256 is the digest.

        The digest is cached here, like a `cached_property`: serializing 15,000 parts again takes half a second.

        Raises:
            ValueError: the bytes are not a manifest.
        """
        manifest = cls.model_validate_json(canonical)
        vars(manifest)["digest"] = hashlib.sha256(canonical).hexdigest()
        return manifest

    def named(self, stem: str) -> tuple[Part, ...]:
        """Return the parts whose name starts with `stem`, in order."""
        return tuple(part for part in self.parts if part.name.startswith(stem))

    @property
    def misplaced(self) -> str:
        """Return the first numbered Parquet part (`part-00000.parquet`) whose number differs from its position. Return
        an empty string if there is none."""
        numbers = Counter[str]()
        for part in self.parts:
            if found := _NUMBERED.fullmatch(part.name):
                stem, number = found.groups()
                if int(number) != numbers[stem]:
                    return part.name
                numbers[stem] += 1
        return ""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.blob.bytes for part in self.parts)


class Step(Frozen):
    """Pure function by name, with the version of its code, its parameters, and the versions of third-party code that
    determine its output (`fingerprint.libraries`)."""

    name: str
    version: str
    params: Mapping[str, Any] = Field(default_factory=dict)
    libraries: Mapping[str, str] = Field(default_factory=dict)

    def key(self, inputs: Sequence[str]) -> str:
        """Return the cache key of this step for inputs with these digests, in this order."""
        facts = {"step": self.name, "version": self.version, "params": self.params, "inputs": list(inputs)}
        return fingerprint.digest(facts | ({"libraries": self.libraries} if self.libraries else {}))


def bucket_of(name: str) -> str:
    """Return the bucket of an asset key or of a stream's name: the part before the first slash."""
    return name.partition("/")[0]
