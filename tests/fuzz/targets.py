"""Fuzz targets: each takes any bytes and raises only if a guarantee is broken.

A parser may refuse its input with a `PlinthError` or as a counted reject; a kernel must agree with a
slow, obvious reference. Everything else is a finding.
"""

from __future__ import annotations

import hashlib
import string
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.corpus.documents.normalize import normalize
from plinth.corpus.extract.content.engine import BlockEngine, default_model
from plinth.corpus.lists import numbered_lines
from plinth.corpus.policy.expressions import parse
from plinth.corpus.sources.parameters import Normalisation, Source, Terms
from plinth.corpus.sources.record import RawRecord, Reject, read
from plinth.errors import PlinthError
from plinth.recipe.yaml_lines import read as read_yaml
from plinth.storage.files import SourceFile
from plinth_text import scoring, similarity
from plinth_text.rules import c4, fineweb, gopher
from plinth_text.unicode import utf8
from tests.fuzz import columns
from tests.plinth.corpus.extract.test_content import ALL
from tests.plinth_text.folding import fold_text

MAX_RECORD = 2**20
#: Characters that the engine writes between and before blocks.
LABELS = " \n\t•.-0123456789" + string.ascii_letters


@contextmanager
def _file(data: bytes, name: str) -> Iterator[SourceFile]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield SourceFile(uri=str(path), name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _read(data: bytes, kind: str, name: str) -> None:
    terms = Terms(train=True, redistribute=True, commercial=True)
    source = Source(kind=kind, path=name, licence="MIT", terms=terms, domain="fuzz", snapshot="fuzz")
    with _file(data, name) as file:
        try:
            for item in read(file, source, "MIT", MAX_RECORD):
                assert isinstance(item, RawRecord | Reject)
        except PlinthError:
            return


def warc(data: bytes) -> None:
    """Any bytes as an uncompressed WARC file."""
    _read(data, "warc", "a.warc")


def warc_gzip(data: bytes) -> None:
    """Any bytes as a compressed WARC file."""
    _read(b"\x1f\x8b" + data, "warc", "a.warc.gz")


def jsonl(data: bytes) -> None:
    """Any bytes as lines of JSON."""
    _read(data, "jsonl", "a.jsonl")


def zstandard(data: bytes) -> None:
    """Any bytes behind the magic number of zstd."""
    _read(b"\x28\xb5\x2f\xfd" + data, "jsonl", "a.jsonl.zst")


def parquet(data: bytes) -> None:
    """Any bytes between the marks of Parquet."""
    _read(b"PAR1" + data + b"PAR1", "parquet", "a.parquet")


def page(data: bytes) -> None:
    """Any bytes as a page: the same text every time, of characters that the page has, and labels of items."""
    html = data.decode("utf-8", "replace")
    for extract in _engines():
        content = extract(html)
        assert content == extract(html)
        assert 0 <= content.unsure <= 1
        assert all(0 <= trait <= 1 for trait in content.traits)
        assert "&" in html or set(content.text) <= {*html, *LABELS}


@cache
def _engines() -> tuple[BlockEngine, ...]:
    """The engine with a model that keeps everything, and with one whose blocks the rules of form add and drop."""
    return BlockEngine(ALL), BlockEngine(default_model())


def recipe(data: bytes) -> None:
    """Any bytes as a recipe's YAML."""
    with _file(data, "recipe.yaml") as file:
        try:
            read_yaml(Path(file.uri), file.name)
        except PlinthError:
            return


def policy(data: bytes) -> None:
    """Any text as a policy's expression."""
    try:
        parse(data.decode("utf-8", "replace"), {"a.b": pa.int64(), "a.c": pa.string()}, "rule")
    except PlinthError:
        return


def lists(data: bytes) -> None:
    """Any bytes as a list of words."""
    with _file(data, "words.txt.gz" if data[:1] == b"\x1f" else "words.txt") as file:
        try:
            for number, line in numbered_lines(file.name, Path(file.uri)):
                assert number >= 1
                assert line == line.strip() != ""
        except PlinthError:
            return


def normal_form(data: bytes) -> None:
    """Normalization is idempotent and loses no letter."""
    text = data.decode("utf-8", "replace")
    params = Normalisation(repair_mojibake=False)
    once = normalize(text, params)
    assert normalize(once, params) == once
    before, after = (sum(map(str.isalpha, one)) for one in (unicodedata.normalize("NFC", text), once))
    assert after == before


def _alike(count: Callable[[pa.Array], Any], alone: pa.Array, among: pa.Array) -> None:
    assert (count(alone)[0] == count(among)[1]).all()


def _after_c4(texts: pa.Array, lines: c4.Lines) -> Any:
    data, offsets, words = c4.pages(texts, lines).kept
    return fineweb.fineweb_counts(data, offsets, 30, lines.english, words if lines.english else None)


def kernels(data: bytes) -> None:
    """Run every kernel on a text with any bytes before and after it in the buffer."""
    text = data.decode("utf-8", "replace")
    alone, among = pa.array([text], pa.large_string()), pa.array(["é", text, "x y"], pa.large_string())
    for english in (False, True):
        _alike(lambda texts, english=english: gopher.gopher_counts(texts, english), alone, among)
        _alike(lambda texts, english=english: fineweb.fineweb_counts(*utf8(texts), 30, english), alone, among)
        _alike(lambda texts, english=english: gopher.repetition_shares(texts, english), alone, among)
        lines = c4.Lines(3, 1000, english=english)
        _alike(lambda texts, lines=lines: c4.pages(texts, lines).counts, alone, among)
        _alike(lambda texts, lines=lines: _after_c4(texts, lines), alone, among)
    a, b = similarity.permutations(16, 1)
    assert (similarity.signatures(alone, 5, a, b)[0][0] == similarity.signatures(among, 5, a, b)[0][1]).all()
    hashes, _, offsets = scoring.tokens(among)
    assert (scoring.tokens(alone)[0] == hashes[offsets[1] : offsets[2]]).all()
    assert fold_text(fold_text(text)) == fold_text(text)


def text_columns(data: bytes) -> None:
    """Any bytes as a column of texts, for every kernel."""
    columns.read(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        warc, warc_gzip, jsonl, zstandard, parquet, page, recipe, policy, lists, normal_form, kernels, text_columns,
    )
}  # fmt: skip

#: Where each target starts from; all are run as ordinary tests, too.
SEEDS: dict[str, tuple[bytes, ...]] = {
    "warc": (
        b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 0\r\n\r\n\r\n\r\n",
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/\r\nContent-Length: 60\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"WARC/1.0\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ),
    "warc_gzip": (b"\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00", b""),
    "jsonl": (b'{"text": "a"}\n{"text": 3}\n[]\n{"text"', b"\xff\xfe{\x00", b'{"text": "\\ud800"}\n', b"[" * 5000),
    "zstandard": (b"\x00\x00", b"\x24\x00\x01\x00\x00"),
    "parquet": (b"", b"\x15\x04" * 20),
    "page": (
        b"<title>t</title><p>a <b>b<p hidden>c</p><ul><li>d<ol type=i start=3><li>e</ul><pre>\n f\n</pre>",
        b"<table><tr><td>1<td>2<tr><th>3</table></div><dl><dt>a<dd>b</dl><br><br>x &nbsp; y",
        b"<!--<a href='x\xff<svg></td></p><img style=display:none><span class=lineno>1</span>\xe3\x80\x82",
        b"<p class=flex><ruby>\xe6\xbc\xa2<rt>a<rt>b</ruby><b>c<b>d</b></b></p><ruby><rt></rt>(<rt>e",
    ),
    "recipe": (b"a: &a [*a]\n", b"x: !!python/object/apply:os.system [id]\n", b"\x00", b"a: 1\na: 2\n", b"- " * 3000),
    "policy": (b"a.b < 3 and not (a.c in ['x'])", b"(" * 2000, b"a.b < 1e999", b"__import__('os')"),
    "lists": (b"# words\none\ntwo\n", b"\x1f\x8b\x08", b"\xff", b"x" * 5000),
    "normal_form": ("a\u0301 ﬁ\u00ad\u200b\r\n\r\n\r\n\x00é".encode(), b"\xc3"),
    "kernels": ("The quick… {brown} fox\u2028jumps. 1 2 3\n\n- a\n- a\n日本語 text".encode(), b"", b"\n" * 50),
    "text_columns": (b"\x01".join(columns.HOSTILE), b"", b"null\x01\xff"),
}
