"""A new project: a recipe whose sources are found by looking at a folder of data, a gate policy, a CI workflow, and a
Dagster project with Plinth's component."""

from __future__ import annotations

import json
import keyword
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import packages_distributions
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from plinth.corpus.sources.record import READERS
from plinth.corpus.sources.streams import TextLine, lines, stretches
from plinth.errors import MissingError, RequestError
from plinth.storage.atomic import write_bytes
from plinth.storage.listing import ending
from plinth_jobs import policies

#: Readers with their own file name suffixes, most specific first; other text files are `text` or `tree`.
_BY_SUFFIX: Final = ("warc", "html", "pdf", "latex", "jsonl", "parquet")
_TEXT: Final = (".txt", ".md", ".rst")
_CODE: Final = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".scala", ".js", ".jsx", ".ts", ".tsx",
    ".go", ".rs", ".rb", ".php", ".cs", ".swift", ".sh", ".sql", ".r", ".jl", ".lua",
)  # fmt: skip
#: Usual names of the text in records, in order of preference.
_TEXT_FIELDS: Final = ("text", "content", "raw_content", "body", "document", "markdown")
#: A license that no one permits: documents are dropped until the owner's license is stated.
UNSTATED: Final = "LicenseRef-not-stated"
#: Maximum size of a record that is read to find its text.
FIRST_RECORD_BYTES = 16 * 2**20
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class FoundSource(NamedTuple):
    """Files of one kind below a folder of data."""

    bucket: str
    kind: str
    path: str
    files: int
    suffixes: tuple[str, ...] = ()
    text_field: str = ""


#: Source of a recipe that is written without data: text files in `input/documents` of the workspace.
EXAMPLE: Final = FoundSource("documents", "text", "documents", 0, _TEXT)


def look(folder: Path) -> tuple[list[FoundSource], dict[str, int]]:
    """Find the sources in a folder: one bucket per subfolder, one source per kind of file.

    Only names are read, and the first record of one JSONL or Parquet file per source. Files next to subfolders become
    a bucket of their own, whose paths do not include the subfolders.

    Returns:
        The sources, and the number of files that no reader knows, by suffix.

    Raises:
        MissingError: the folder does not exist, or no reader knows any of its files.
    """
    counts: dict[_Place, Counter[str]] = {}
    examples: dict[_Place, Path] = {}
    unknown = Counter[str]()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        kind, suffix = _kind(path.name)
        if not kind:
            unknown[suffix or "no suffix"] += 1
            continue
        below = parts[0] if len(parts) > 1 else ""
        place = _Place(below, kind, "" if below else path.name[-len(ending(path.name)) :])
        counts.setdefault(place, Counter())[suffix] += 1
        examples.setdefault(place, path)
    if not counts:
        found = ", ".join(f"{number} {suffix}" for suffix, number in unknown.most_common(5))
        raise MissingError(
            f"no documents in {folder}",
            found=found or "no files",
            expected=f"files that a reader knows: {', '.join((*_BY_SUFFIX, 'text', 'tree'))}",
        )
    buckets = _buckets(folder, counts)
    sources = [_source(folder, place, buckets[place.group], counts[place], examples[place]) for place in counts]
    return sources, dict(unknown.most_common())


class _Place(NamedTuple):
    """Subfolder and reader of a source. Files next to subfolders have no subfolder, but the ending of their name."""

    below: str
    kind: str
    ending: str

    @property
    def group(self) -> tuple[str, bool]:
        """Files that share a bucket: those of a subfolder, without its source code."""
        return self.below, self.kind == "tree"


def _buckets(folder: Path, places: Iterable[_Place]) -> dict[tuple[str, bool], str]:
    """Return the bucket of each group. Folders with similar names, such as `Web` and `web`, have different buckets."""
    found = dict[tuple[str, bool], str]()
    for place in places:
        if place.group not in found:
            name = _bucket(place.below or folder.absolute().name) + ("_code" if place.kind == "tree" else "")
            numbered = (name if number == 1 else f"{name}_{number}" for number in count(1))
            found[place.group] = next(one for one in numbered if one not in found.values())
    return found


def _source(folder: Path, place: _Place, bucket: str, suffixes: Counter[str], example: Path) -> FoundSource:
    field = _text_field(place.kind, example) if place.kind in ("jsonl", "parquet") else ""
    path = folder.absolute() / (place.below or f"*{place.ending}")
    wanted = tuple(sorted(suffixes)) if place.kind in ("text", "tree") and place.below else ()
    return FoundSource(bucket, place.kind, str(path), suffixes.total(), wanted, field)


def _kind(name: str) -> tuple[str, str]:
    """Return the reader of a file, or an empty string, and its suffix without compression."""
    lower = name.lower()
    for kind in _BY_SUFFIX:
        if lower.endswith(READERS.find(kind).suffixes):
            return kind, ""
    suffix = Path(lower).suffix
    return "text" if suffix in _TEXT else "tree" if suffix in _CODE else "", suffix


def _text_field(kind: str, example: Path) -> str:
    """Return the field with the text, or an empty string if it is the default or unknown."""
    record = _first_row(example) if kind == "parquet" else _first_line(example)
    texts = {name: len(value) for name, value in record.items() if isinstance(value, str)}
    if not texts or "text" in texts:
        return ""
    return next((name for name in _TEXT_FIELDS if name in texts), max(texts, key=lambda name: texts[name]))


def _first_line(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as raw:
        for line in islice(lines(stretches(raw, path.name), FIRST_RECORD_BYTES), 1):
            try:
                record = json.loads(line.data or b"") if isinstance(line, TextLine) else None
            except ValueError:
                record = None
            return record if isinstance(record, dict) else {}
    return {}


def _first_row(path: Path) -> Mapping[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        return next((batch.to_pylist()[0] for batch in file.iter_batches(1)), {})
    except (pa.ArrowException, OSError):
        return {}


def _bucket(folder: str) -> str:
    plain = unicodedata.normalize("NFKD", folder.casefold()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:36]
    return name if _NAME.fullmatch(name) else f"bucket_{name}".rstrip("_")


def recipe(
    name: str, sources: Sequence[FoundSource], licence: str = UNSTATED, owner: str = "corpus@example.org"
) -> str:
    """Return the text of a recipe with these sources. The sections of a first model are commented out."""
    snapshot = datetime.now(UTC).strftime("%G-%V")
    buckets: dict[str, Any] = {}
    for found in sources:
        bucket = buckets.setdefault(
            found.bucket, {"description": f"Documents of {found.path}.", "owner": owner, "sources": []}
        )
        if found.kind == "tree" and not bucket["sources"]:
            bucket["policy"] = "code"
        bucket["sources"].append(
            {
                "kind": found.kind,
                "path": found.path,
                **({"suffixes": list(found.suffixes)} if found.suffixes else {}),
                **({"fields": {"text": found.text_field}} if found.text_field else {}),
                "licence": licence,
                "terms": {"train": True, "redistribute": False, "commercial": False},
                "domain": found.bucket,
                "snapshot": snapshot,
            }
        )
    body = yaml.safe_dump({"corpus": {"buckets": buckets}}, sort_keys=False, allow_unicode=True, width=100)
    return f"""\
# Sources and filters of {name}. `plinth recipe check FILE` lists problems, `plinth recipe show FILE` prints all keys.
# State the license and terms of each source. Documents with a license outside corpus.permitted_licences are dropped.
extends: base.yaml
name: {name}

{body}
# Remove the comment signs to train and release a model of this corpus.
# tokenizer: {{vocab_size: 32768}}
# mixture: {{sequence_tokens: 2048, total_tokens: 1000000000}}
# training:
#   model: {{layers: 12, dim: 768, heads: 12, kv_heads: 4, ffn_dim: 2048}}
# release: {{name: {name}}}
"""


def policy(name: str) -> str:
    """Return the text of a gate policy for the release `name`: the packaged default policy."""
    text = (policies.FOLDER / f"{policies.DEFAULT}.yaml").read_text()
    return re.sub(r"^release: .*$", f"release: {name}", text, flags=re.MULTILINE)


#: GitHub workflow of a new project.
_WORKFLOW: Final = Path(__file__).with_name("ci_workflow.yaml")

_PYPROJECT = """\
[project]
name = "{project}"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["plinth"]

[dependency-groups]
dev = ["dagster-webserver", "dagster-dg-cli"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{module}"
"""

_DEFINITIONS = """\
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

_COMPONENT = """\
type: plinth_jobs.dg.RecipeComponent

attributes:
  recipe: ../../../../recipe.yaml
  workspace: workspace
"""


#: Import names of this project, which the metadata of an editable installation does not list.
_OWN: Final = ("plinth", "plinth_text", "plinth_registry", "plinth_assets", "plinth_jobs")


def module_of(name: str) -> str:
    """Return the Python package of a project."""
    return name.replace("-", "_")


def name_of(folder: Path) -> str:
    """Return the name of a project in a folder, which is the folder's name.

    Raises:
        RequestError: a recipe cannot have this name.
    """
    name = folder.absolute().name.lower().replace("_", "-")
    if re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name) and not name.endswith("-candidate"):
        return name
    raise RequestError(
        f"{folder.absolute().name!r} cannot be the name of a recipe",
        expected="letters, digits and hyphens, beginning with a letter",
        remedy="the recipe is named after the folder: choose another folder name, for example `plinth init web-corpus`",
    )


def require_own_package(name: str) -> None:
    """Require that the Python package of a new project has a name of its own.

    Raises:
        RequestError: the name is a keyword, or that of another package.
    """
    module = module_of(name)
    if keyword.iskeyword(module) or module in {*sys.stdlib_module_names, *_OWN, *packages_distributions()}:
        raise RequestError(
            f"{name!r} cannot be the name of a project",
            found=f"{module} is a keyword, or the name of an installed package or module",
            remedy="choose another folder name, for example `plinth init web-corpus`",
        )


def files(name: str, sources: Sequence[FoundSource], licence: str, owner: str) -> dict[str, str]:
    """Return the text of every file of a new project, by its path."""
    module = module_of(name)
    return {
        "recipe.yaml": recipe(name, sources, licence, owner),
        "policy.yaml": policy(name),
        ".gitignore": "workspace/\n.venv/\n__pycache__/\n",
        ".github/workflows/plinth.yaml": _WORKFLOW.read_text(),
        "pyproject.toml": _PYPROJECT.format(project=name, module=module),
        f"src/{module}/__init__.py": "",
        f"src/{module}/definitions.py": _DEFINITIONS,
        f"src/{module}/defs/__init__.py": "",
        f"src/{module}/defs/corpus/defs.yaml": _COMPONENT,
    }


def write(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    """Write the files of a new project; existing files are never replaced.

    Raises:
        RequestError: one of the files exists; nothing was written.
        WorkspaceError: a file cannot be written.
    """
    there = [name for name in contents if (folder / name).exists()]
    if there:
        raise RequestError(
            f"{folder} already contains files of a project",
            found=", ".join(there[:5]),
            expected="a folder without them",
            remedy="name another folder, or remove these files first",
        )
    for name, text in contents.items():
        write_bytes(folder / name, text.encode())
    return [folder / name for name in contents]
