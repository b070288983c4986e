"""Croissant 1.1 metadata of a text export (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html).

`croissant.json` lists every file with its SHA-256, one record set per bucket with the columns as fields, the licenses
of the documents, the manifests that the text is derived from, and the responsible-AI fields (`responsible_ai`). There
is no time stamp, so a repeated export gives the same bytes. The standard also wants `creator`, `url` and
`datePublished`. An export has no evidence of these: the publisher adds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from plinth.compute.context import Context, sum_stats
from plinth.text import counted
from plinth_audit.text_export.manifest import DATA, language_codes
from plinth_audit.text_export.responsible_ai import ExportedText, responsible_ai

CONFORMS_TO: Final = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")

#: JSON-LD context of the specification (appendix 1), with the prefixes of its responsible-AI and provenance sections.
CONTEXT: Final[Mapping[str, Any]] = {
    "@language": "en", "@vocab": "https://schema.org/", "arrayShape": "cr:arrayShape", "citeAs": "cr:citeAs",
    "column": "cr:column", "conformsTo": "dct:conformsTo", "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"}, "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract", "field": "cr:field",
    "fileObject": "cr:fileObject", "fileProperty": "cr:fileProperty", "fileSet": "cr:fileSet", "format": "cr:format",
    "includes": "cr:includes", "isArray": "cr:isArray", "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath", "key": "cr:key", "md5": "cr:md5", "name": {"@container": "@language"},
    "parentField": "cr:parentField", "path": "cr:path", "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/", "recordSet": "cr:recordSet", "references": "cr:references",
    "regex": "cr:regex", "repeated": "cr:repeated", "replace": "cr:replace", "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/", "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField",
    "transform": "cr:transform",
}  # fmt: skip

#: Media types of the export formats. `application/x-parquet` and `application/jsonlines` are those of the standard.
MEDIA_TYPES: Final[Mapping[str, str | list[str]]] = {
    "parquet": "application/x-parquet",
    "jsonl": "application/jsonlines",
    "jsonl.gz": ["application/jsonlines", "application/gzip"],
    "jsonl.zst": ["application/jsonlines", "application/zstd"],
}

#: An identifier of the SPDX license list: no expression, no license of one's own, not `unknown`.
_SPDX: Final = re.compile(r"(?!LicenseRef-|unknown$)[A-Za-z0-9][A-Za-z0-9.+-]*")


def croissant(ctx: Context, text: ExportedText) -> bytes:
    """Return the content of `croissant.json`.

    Raises:
        MissingError, IntegrityError: a manifest that the exported text is derived from cannot be read.
    """
    total = sum_stats(file.model_dump() for file in text.files.values())
    size = f"{counted(total['documents'], 'document')}, {total['text_bytes']:,} bytes of text"
    languages = language_codes(total.get("languages", {}), total["documents"])
    content = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": list(CONFORMS_TO),
        "name": text.name,
        "description": f"Curated text of the corpus {text.name}: {size}, with the ledger columns of every document.",
        **({"license": licences} if (licences := [licence(one) for one in sorted(total["licences"])]) else {}),
        **({"inLanguage": languages} if languages else {}),
        "distribution": [*_files(text), *_file_sets(text)],
        "recordSet": [_record_set(text, bucket) for bucket in text.schemas],
        "prov:wasDerivedFrom": [_entity(asset, digest) for asset, digest in sorted(text.inputs.items())],
        **responsible_ai(ctx, text),
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def licence(spdx: str) -> str:
    """Return the address of an SPDX license, as the standard recommends. Other expressions stay as they are."""
    return f"https://spdx.org/licenses/{spdx}" if _SPDX.fullmatch(spdx) else spdx


def _entity(asset: str, digest: str) -> dict[str, str]:
    return {"@type": "prov:Entity", "@id": f"urn:sha256:{digest}", "prov:label": asset}


def _files(text: ExportedText) -> Iterator[dict[str, Any]]:
    for name, file in text.files.items():
        yield {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": name,
            "contentSize": f"{file.bytes} B",
            "encodingFormat": MEDIA_TYPES[text.format] if name.startswith(DATA) else "text/markdown",
            "sha256": file.sha256,
        }


def _file_sets(text: ExportedText) -> Iterator[dict[str, Any]]:
    for bucket in text.schemas:
        yield {
            "@type": "cr:FileSet",
            "@id": f"{bucket}-files",
            "name": f"{bucket}-files",
            "description": f"Files of bucket {bucket}.",
            "encodingFormat": MEDIA_TYPES[text.format],
            "includes": f"{DATA}{bucket}/train-*.{text.format}",
        }


def _record_set(text: ExportedText, bucket: str) -> dict[str, Any]:
    """Return the record set of a bucket. In JSON lines, `metadata` is an object of each source's own keys, which has no
    type in Croissant and is left out.
    """
    fields = [field for field in text.schemas[bucket] if text.format == "parquet" or field.name != "metadata"]
    return {
        "@type": "cr:RecordSet",
        "@id": bucket,
        "name": bucket,
        "description": f"Documents of bucket {bucket}.",
        "key": {"@id": f"{bucket}/id"},
        "field": [_field(bucket, field) for field in fields],
    }


def _field(bucket: str, field: pa.Field) -> dict[str, Any]:
    listed = pa.types.is_list(field.type)
    return {
        "@type": "cr:Field",
        "@id": f"{bucket}/{field.name}",
        "name": field.name,
        "dataType": data_type(field.type.value_type if listed else field.type),
        **({"isArray": True, "arrayShape": "-1"} if listed else {}),
        "source": {"fileSet": {"@id": f"{bucket}-files"}, "extract": {"column": field.name}},
    }


def data_type(kind: pa.DataType) -> str:
    """Return Croissant's type of a column's values."""
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_timestamp(kind):
        return "sc:DateTime"
    if pa.types.is_integer(kind):
        return f"cr:{'UInt' if pa.types.is_unsigned_integer(kind) else 'Int'}{kind.bit_width}"
    if pa.types.is_floating(kind):
        return f"cr:Float{kind.bit_width}"
    return "sc:Text"
