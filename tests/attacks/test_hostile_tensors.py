"""Attack: weight files of a folder are written by hand. A header has exactly one reading, or the file is not loaded.

Measurement and serving use different libraries: with a header that two of
them read differently, one model would be measured and another one served.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.errors import CheckpointError
from plinth.model.export import export_model, require_same
from plinth.model.folder import SavedWeights
from plinth.model.hugging_face import INDEX, WEIGHTS
from plinth.storage import tensor_file
from tests.plinth.model.test_export import digests, saved

FIRST, LAST = "model.embed_tokens.weight", "model.norm.weight"
#: The text of a header to another one.
Change = Callable[[dict[str, dict[str, list[int]]]], str]


def _entry(name: str, key: str, value: object) -> Change:
    return lambda header: json.dumps({**header, name: {**header[name], key: value}})


def _again(header: dict[str, dict[str, list[int]]]) -> str:
    """The last tensor under the first one's name too; one reader takes the first, another the last."""
    text = json.dumps(header)
    return f'{text[:-1]}, "{LAST}": {json.dumps({**header[LAST], "shape": [32]})}}}'


HEADERS: dict[str, Change] = {
    "a name twice": _again,
    "a key of an entry twice": lambda header: json.dumps(header).replace('"dtype"', '"dtype": "F16", "dtype"', 1),
    "metadata twice": lambda header: f'{{"__metadata__": {{}}, "__metadata__": {{}}, {json.dumps(header)[1:]}',
    "tensors that overlap": _entry(LAST, "data_offsets", [0, 128]),
    "a gap": lambda header: json.dumps({name: one for name, one in header.items() if name != FIRST}),
    "a tensor outside the file": _entry(LAST, "data_offsets", [1 << 40, (1 << 40) + 128]),
    "a tensor before the file": _entry(LAST, "data_offsets", [-128, 0]),
    "another shape": _entry(LAST, "shape", [33]),
    "a negative shape": _entry(LAST, "shape", [-4, -8]),
    "another type": _entry(LAST, "dtype", "F16"),
    "an unknown type": _entry(LAST, "dtype", "F7"),
    "no offsets": lambda header: json.dumps({**header, LAST: {"dtype": "F32", "shape": [32]}}),
    "a list": lambda header: json.dumps([header]),
    "nested": lambda header: "[" * 100_000 + "]" * 100_000,
    "nothing": lambda header: "",
}


def rewritten(path: Path, change: Change, length: int | None = None) -> None:
    """Change the header of a tensor file; `length` is the header length that the file claims."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = {name: one for name, one in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
    text = change(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data[8 + size :])


def require_unread(folder: Path) -> None:
    """Both loaders refuse a folder, the one that hashes what it reads too, and so does the reader of parts of files."""
    for known in (None, digests(folder)):
        with pytest.raises(CheckpointError, match="is not a loadable model"):
            SavedWeights(folder, known)
    with pytest.raises((ValueError, KeyError, TypeError, RecursionError, AttributeError)):
        tensor_file.places(folder / WEIGHTS)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with_two_readings(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "model")
    rewritten(folder / WEIGHTS, lambda header: json.dumps(header))
    SavedWeights(folder, digests(folder))
    rewritten(folder / WEIGHTS, HEADERS[name])
    require_unread(folder)


@pytest.mark.parametrize("length", [0, 7, 1 << 20, (1 << 64) - 1])
def test_a_length_of_the_header_that_is_not_its(tmp_path: Path, length: int) -> None:
    folder = saved(tmp_path / "model")
    rewritten(folder / WEIGHTS, json.dumps, length)
    require_unread(folder)


@pytest.mark.parametrize("size", [-1, 1])
def test_bytes_that_no_tensor_has_and_tensors_without_bytes(tmp_path: Path, size: int) -> None:
    folder = saved(tmp_path / "model")
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data + b"\0" if size > 0 else data[:-1])
    require_unread(folder)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    """One program takes the file that the index names, another the one that it opens last."""
    source = saved(tmp_path / "source")
    export_model(source, source / "tokenizer.json", tmp_path / "out", file_bytes=20_000)
    out = tmp_path / "out"
    named = json.loads((out / INDEX).read_bytes())["weight_map"]
    shutil.copy(out / named[FIRST], out / named[LAST])
    for known in (None, digests(out)):
        with pytest.raises(CheckpointError, match="another file"):
            SavedWeights(out, known)


def test_an_export_with_such_a_header_is_stated_by_nobody(tmp_path: Path) -> None:
    source, out = saved(tmp_path / "source"), tmp_path / "out"
    export_model(source, source / "tokenizer.json", out)
    rewritten(out / WEIGHTS, _again)
    with pytest.raises(CheckpointError, match="occurs twice"):
        require_same(source, digests(source), out, digests(out))
