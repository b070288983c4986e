"""File list of a text export: plan, progress, final manifest, and verification.

The lists at the target say which files are complete. Anyone who can write to the target can change a file together
with its list, and the next export would sign the change. Therefore a file is reused only if this user recorded it in a
private folder of this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plinth import fingerprint, private
from plinth.errors import IntegrityError, StorageError
from plinth.records import Frozen
from plinth.storage.atomic import append_to, relative, write_bytes
from plinth.storage.uris import read_file, remove_file, sizes, write_file

VERSION = "2"
MANIFEST, CARD, CROISSANT, DATA, PROGRESS = "manifest.json", "README.md", "croissant.json", "data/", ".progress/"
PLAN = f"{PROGRESS}plan.json"
#: Files that describe the text files.
_DESCRIPTIONS = (CARD, CROISSANT)
#: Private folder with the records that this user wrote, one file per target.
WRITTEN = "text-exports"


class ExportFile(Frozen):
    """File in an export: key, length, digest, counts, and the number of documents excluded by license.

    `captured` has documents by day of capture.
    """

    key: str
    bytes: int
    sha256: str
    documents: int = 0
    text_bytes: int = 0
    withheld: int = 0
    licences: Mapping[str, int] = {}
    languages: Mapping[str, int] = {}
    captured: Mapping[str, int] = {}


class TextExport(Frozen):
    """Content of an export's `manifest.json`, and its digest."""

    format: str
    version: str
    inputs: Mapping[str, str]
    files: Mapping[str, ExportFile]

    @property
    def digest(self) -> str:
        """SHA-256 of `manifest.json`."""
        return fingerprint.digest(self)


def load(to: str) -> TextExport:
    """Read the manifest of a finished text export.

    Raises:
        StorageError: there is no manifest.
        IntegrityError: the manifest is invalid.
    """
    try:
        return TextExport.model_validate_json(b"".join(read_file(f"{to}/{MANIFEST}")))
    except ValueError as error:
        raise IntegrityError(f"{to}/{MANIFEST} is not an export manifest", found=error) from error


def begin(to: str, wanted: Mapping[str, str]) -> dict[str, ExportFile]:
    """Plan a text export. Return the complete files of this user's earlier attempts that are still needed, by name.

    Args:
        wanted: key of each text file, by file name.

    Raises:
        StorageError: the target has files that are not from an export.
    """
    there = sizes(to)
    done, ours = _recorded(to, there)
    ours |= {name for name in there if _half_written(name, ours)}
    strange = sorted(name for name in there if (name.startswith(DATA) or name in _DESCRIPTIONS) and name not in ours)
    if strange:
        raise StorageError(
            f"{to} has files that are not from an export",
            found=", ".join(strange[:3]),
            expected="an empty folder, or a folder written by `plinth export text`",
            remedy="choose another folder",
        )
    own = _own_records(to)
    known = {
        name: file
        for name, file in done.items()
        if wanted.get(name) == file.key and there.get(name) == file.bytes and _mark(name, file) in own
    }
    write_bytes(_private_records(to), "".join(f"{_mark(name, file)}\n" for name, file in known.items()).encode())
    plan = {
        "files": sorted(ours | set(wanted) | {*_DESCRIPTIONS}),
        "done": {name: file.model_dump() for name, file in known.items()},
    }
    write_file(f"{to}/{PLAN}", lambda out: out.write(fingerprint.canonical(plan)))
    for name in (MANIFEST, *sorted(set(there) & ours - set(known))):
        remove_file(f"{to}/{name}")
    return known


def record(to: str, name: str, file: ExportFile) -> None:
    """Record in the progress folder of the export, and in this user's private folder, that a file is complete."""
    with append_to(_private_records(to)) as records:
        records.write(f"{_mark(name, file)}\n".encode())
    note = {"name": name, "file": file.model_dump()}
    write_file(f"{to}/{PROGRESS}{file.key}.json", lambda out: out.write(fingerprint.canonical(note)))


def finish(to: str, kind: str, files: Mapping[str, ExportFile], inputs: Mapping[str, str]) -> TextExport:
    """Write the manifest of the export, then delete the progress files."""
    made = TextExport(format=kind, version=VERSION, inputs=inputs, files=files)
    write_file(f"{to}/{MANIFEST}", lambda out: out.write(fingerprint.canonical(made)))
    for name in sizes(f"{to}/{PROGRESS.rstrip('/')}"):
        remove_file(f"{to}/{PROGRESS}{name}")
    if (folder := Path(to) / PROGRESS).is_dir():
        folder.rmdir()
    return made


def _recorded(to: str, there: Mapping[str, int]) -> tuple[dict[str, ExportFile], set[str]]:
    """Return the complete files by name, and the names of all files that any export planned or wrote here."""
    done, ours = dict[str, ExportFile](), set[str]()
    if MANIFEST in there:
        done |= load(to).files
        ours |= set(done)
    if PLAN in there:
        plan = json.loads(b"".join(read_file(f"{to}/{PLAN}")))
        done |= {name: ExportFile(**file) for name, file in plan["done"].items()}
        ours |= set(plan["files"])
    for name in there:
        if name.startswith(PROGRESS) and name != PLAN:
            one = json.loads(b"".join(read_file(f"{to}/{name}")))
            done[one["name"]] = ExportFile(**one["file"])
    return done, ours


def _private_records(to: str) -> Path:
    """Return the file of this user with the digests of the records that were written for a target."""
    place = to if "://" in to else os.path.realpath(to)
    return private.folder(WRITTEN) / hashlib.sha256(os.fsencode(place)).hexdigest()[:32]


def _own_records(to: str) -> set[str]:
    try:
        return set(_private_records(to).read_text().split())
    except FileNotFoundError:
        return set()


def _mark(name: str, file: ExportFile) -> str:
    return fingerprint.digest([name, file.model_dump(mode="json")])


def _half_written(name: str, ours: set[str]) -> bool:
    """Return True if a file is a partial copy of one of `ours`, left by a killed process (`storage.atomic`)."""
    folder, _, last = name.rpartition("/")
    own = last.removeprefix(".").rpartition(".")[0].rpartition(".")[0]
    return last.startswith(".") and last.endswith(".tmp") and f"{folder}/{own}".lstrip("/") in ours


def verify(to: str, digest: str | None = None) -> TextExport:
    """Read every file of an export, and compare its length and SHA-256 with the manifest.

    Args:
        digest: expected SHA-256 of `manifest.json`, as printed by the export.

    Raises:
        IntegrityError: a file is missing, changed or added, or the manifest differs.
        StorageError: the export cannot be read, or has no manifest.
    """
    made, there = load(to), sizes(to)
    for name in made.files:
        relative(name, f"{to}/{MANIFEST}")
    wrong = [f"{name} is missing" for name in made.files if name not in there]
    wrong += [f"{name} was added" for name in there if name.startswith(DATA) and name not in made.files]
    for name, file in made.files.items():
        if name in there and (there[name] != file.bytes or _sha256(f"{to}/{name}") != file.sha256):
            wrong.append(f"{name} has changed")
    if digest is not None and made.digest != digest:
        wrong.insert(0, f"the manifest has SHA-256 {made.digest}")
    if wrong:
        raise IntegrityError(
            f"{to} differs from its export",
            found="; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
            expected=f"the {len(made.files)} files in manifest.json" + (f", {digest}" if digest else ""),
            remedy="delete changed files, then repeat the export, which writes missing files",
        )
    return made


def _sha256(uri: str) -> str:
    found = hashlib.sha256()
    for data in read_file(uri):
        found.update(data)
    return found.hexdigest()


# README for the Hugging Face Hub: front matter, then the data card.
#
# The keys are those of the Hub's dataset cards (https://huggingface.co/docs/hub/datasets-cards); `configs` has a data
# set per bucket, and one of all buckets as the default of `load_dataset`.

#: Licenses with an identifier on the Hub, which is the lower-case SPDX identifier
#: (https://huggingface.co/docs/hub/repositories-licenses). All others are `other`, with their name.
HUB_LICENCES = """
apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gfdl isc
lppl-1.3c ms-pl mpl-2.0 odc-by odbl ofl-1.1 osl-3.0 postgresql ncsa unlicense wtfpl zlib agpl-3.0 gpl-2.0 gpl-3.0
lgpl-2.1 lgpl-3.0 pddl
"""
_SUFFIXES = ("-only", "-or-later")
_OTHER_NAMES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}
#: A language is listed if at least one document in this many has it.
LANGUAGE_SHARE = 1000
_STEPS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


@dataclass(frozen=True)
class CardFacts:
    """Values for the front matter of an export's data card.

    Args:
        name: name of the corpus.
        files: file patterns by bucket.
        counts: totals over all files: `documents`, `text_bytes`, and documents by license (`licences`) and language
            (`languages`).
    """

    name: str
    files: Mapping[str, str]
    counts: Mapping[str, Any]


def hub_card(facts: CardFacts, page: str) -> str:
    """Return the data card for the Hugging Face Hub: front matter, then the page."""
    import yaml

    counts = facts.counts
    codes = language_codes(counts.get("languages", {}), counts["documents"])
    front: dict[str, Any] = {"pretty_name": facts.name, **({"language": codes} if codes else {})}
    front |= licence_keys(counts.get("licences", {}))
    front |= {"size_categories": [size_category(facts.counts["documents"])], "task_categories": ["text-generation"]}
    front["configs"] = [_config(name, pattern) for name, pattern in _patterns(facts.files).items()]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n{page}"


def size_category(documents: int) -> str:
    """Return the Hugging Face Hub's size category: `n<1K`, `1K<n<10K`, … `n>1T`."""
    place = next((i for i in range(len(_STEPS)) if documents < 10 ** (3 + i)), len(_STEPS))
    if place == 0:
        return f"n<{_STEPS[0]}"
    return f"{_STEPS[place - 1]}<n<{_STEPS[place]}" if place < len(_STEPS) else f"n>{_STEPS[-1]}"


def hub_licence(licence: str) -> str:
    """Return the Hugging Face Hub's identifier for an SPDX license identifier, or `other` if there is none."""
    known = licence.lower()
    for suffix in _SUFFIXES:
        known = known.removesuffix(suffix)
    known = _OTHER_NAMES.get(known, known)
    return known if known in HUB_LICENCES.split() else "other"


def licence_keys(licences: Iterable[str]) -> dict[str, Any]:
    """Return the front matter key `license`, and `license_name` if a license has no identifier on the Hub."""
    own = sorted(licences)
    known = sorted({hub_licence(one) for one in own})
    named = {"license": known[0] if len(known) == 1 else known} if known else {}
    unknown = [one for one in own if hub_licence(one) == "other"]
    return named | ({"license_name": ", ".join(unknown)} if unknown else {})


def language_codes(languages: Mapping[str, int], documents: int) -> list[str]:
    """Return language codes of two or three letters, most frequent first.

    A language is included if at least one document in `LANGUAGE_SHARE` has this language.

    Args:
        languages: number of documents by label, such as `eng_Latn`.
        documents: number of documents in all languages.
    """
    found = dict[str, int]()
    for label, own in languages.items():
        code = label.partition("_")[0]
        if len(code) in (2, 3) and code.isascii() and code.isalpha():
            found[code] = found.get(code, 0) + own
    shown = [code for code, n in found.items() if n * LANGUAGE_SHARE >= documents]
    return sorted(shown, key=lambda code: (-found[code], code))


def _patterns(files: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Return file patterns by dataset name: one dataset per bucket, and one for all buckets if there are several."""
    whole = {"default": list(files.values())} if len(files) > 1 and "default" not in files else {}
    return {**whole, **files}


def _config(name: str, pattern: str | list[str]) -> dict[str, Any]:
    return {"config_name": name, "data_files": [{"split": "train", "path": pattern}]}
