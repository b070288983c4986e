"""Lists: what is read, and every way in which one is refused, with file and line."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from plinth.corpus.illegal import Lists, Matcher, read
from plinth.corpus.sources.parameters import Matching
from plinth.errors import SourceError

DIGEST = hashlib.sha256(b"a").hexdigest()


def lists(folder: Path, files: Mapping[str, str | bytes], **params: int) -> Lists:
    paths = {}
    for name, text in files.items():
        paths[name] = folder / name.replace("/", "_")
        paths[name].write_bytes(text.encode() if isinstance(text, str) else text)
    return read(paths, "lists/illegal", Matching.model_validate(params))


def test_every_kind_is_read(tmp_path: Path) -> None:
    found = lists(
        tmp_path,
        {
            "sha256-agency.txt": f"# of 2026\n{DIGEST.upper()}\n\n{'0' * 63}1\n",
            "simhash.txt": "0123456789abcdef\n",
            "phash.txt": "fedcba9876543210\n",
            "keywords.tsv": "Flobrik  Zanmox\ttrade\nvexnuk\tother\n",
            "domains.txt": "www.Bad.example\n",
        },
    )
    assert found.sha256 is not None
    at, other = found.sha256.find([hashlib.sha256(one).digest() for one in (b"a", b"b")])
    assert found.digest_entry(at).line == 2
    assert found.digest_entry(at).file == "sha256-agency.txt"
    assert found.digest_entry(at).sha256 == hashlib.sha256(DIGEST.encode()).hexdigest()
    assert other == -1
    assert found.terms is not None
    assert found.terms.terms == ("flobrik zanmox", "vexnuk")
    assert [entry.category for entry in found.keywords] == ["trade", "other"]
    assert list(found.domains) == ["bad.example"]


def test_digests_with_the_same_beginning(tmp_path: Path) -> None:
    many = sorted(
        {f"{'ab' * 8}{number:048x}" for number in range(50)} | {f"{'ff' * 8}{number:048x}" for number in (0, 1)}
    )
    found = lists(tmp_path, {"sha256.txt": "\n".join(many)}).sha256
    assert found is not None
    for number, at in enumerate(found.find([bytes.fromhex(one) for one in many])):
        assert found.places[at].tolist() == [0, number + 1]
    assert found.find([bytes.fromhex(f"{'ab' * 8}{50:048x}")]) == [-1]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"sha256.txt": f"{DIGEST}\n{DIGEST[:-1]}\n"}, r"sha256\.txt, line 2 .*64 hexadecimal digits"),
        ({"sha256.txt": f"{DIGEST}  page.html\n"}, r"line 1 .*exactly 64 hexadecimal digits"),
        ({"simhash.txt": "0123456789abcdeg\n"}, r"line 1 .*16 hexadecimal digits"),
        ({"simhash.txt": "0000000000000000\n"}, r"line 1 .*empty text"),
        ({"phash.txt": "ffffffffffffffff\n"}, r"line 1 .*blank image"),
        ({"keywords.txt": "flobrik\n"}, r"keywords\.txt, line 1 .*TAB"),
        ({"keywords.txt": "flobrik\tNot A Category\n"}, r"line 1 .*category of small letters"),
        ({"keywords.txt": "the\ttrade\n"}, r"line 1 .*not a common word"),
        ({"keywords.txt": "12\ttrade\n"}, r"line 1 .*that has a letter"),
        ({"keywords.txt": "flo\u200bbrik\ttrade\n"}, r"line 1 .*invisible"),
        ({"keywords.txt": "a b c d e f g h i\ttrade\n"}, r"line 1 .*1 to 8 words"),
        ({"keywords.txt": "ok1\ttrade\nFLOBRIK\ttrade\nflobrik\tother\n"}, r"line 3 .*category trade, as before"),
        ({"domains.txt": "localhost\n"}, r"line 1 .*with a dot"),
        ({"sha256.txt": b"\xff\xfe\n"}, r"sha256\.txt cannot be used.*UTF-8"),
        ({"sha256.txt.gz": b"no gzip"}, r"sha256\.txt\.gz .*readable"),
        ({"words.txt": "a\n"}, r"words\.txt .*starts with sha256, simhash"),
        ({"sha256.txt": "# nothing yet\n"}, r"lists/illegal .*at least one"),
    ],
)
def test_hostile_lists_are_refused_by_file_and_line(
    tmp_path: Path, files: Mapping[str, str | bytes], what: str
) -> None:
    with pytest.raises(SourceError) as error:
        lists(tmp_path, files)
    import re

    assert re.search(what, " ".join(str(error.value).split())), str(error.value)


def test_a_listed_host_is_hit_in_every_spelling(tmp_path: Path) -> None:
    matcher = Matcher(lists(tmp_path, {"domains.txt": "bücher.example\ncasino.example\n"}), Matching())
    hit = ["http://b%C3%BCcher.example/x", "http://xn--bcher-kva.example./", "HTTP://a@WWW.BÜCHER.example:8/"]
    hit.append("casino.example/x")
    missed = ["http://notcasino.example/x", "folder/casino.example", "http://[oops/", "casino.txt"]
    texts = pa.array(["text"] * 8, pa.large_string())
    found = matcher.texts(texts, hit + missed, [None] * 8)
    assert [len(hits) for hits in found] == [1, 1, 1, 1, 0, 0, 0, 0]
