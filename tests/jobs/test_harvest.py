"""The demo's harvest: deterministic, within its bounds, nothing of this machine in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from plinth.compute.progress import ProgressLines
from plinth_jobs.harvest import packages, pages, run
from plinth_jobs.harvest.output import Caps, Output, level, take
from plinth_jobs.harvest.run import harvest, render, warc_record
from tests.services import demand

SMALL = Caps(web=300_000, code=600_000, prose=200_000, manuals=200_000)


@pytest.mark.parametrize(
    ("expression", "field", "classifiers", "expected"),
    [
        ("MIT OR Apache-2.0", "BSD", [], "MIT OR Apache-2.0"),
        (None, "Apache License, Version 2.0", [], "Apache-2.0"),
        (None, "MIT license", ["License :: OSI Approved :: BSD License"], "MIT"),
        (None, "BSD", ["License :: OSI Approved :: BSD License"], "LicenseRef-BSD"),
        (None, "3-Clause BSD License", [], "BSD-3-Clause"),
        (None, "Copyright (c) 2001 Somebody. " * 9, ["License :: OSI Approved :: MIT License"], "MIT"),
        (
            None,
            "Dual License",
            ["License :: X :: MIT License", "License :: X :: Apache Software License"],
            "Apache-2.0 AND MIT",
        ),
        (None, None, ["License :: OSI Approved"], "unknown"),
        (None, "Freeware for friends", ["License :: Other/Proprietary License"], "unknown"),
        (None, "EPL-2.0 OR GPL-2.0-or-later", [], "EPL-2.0 OR GPL-2.0-or-later"),
    ],
)
def test_declared_licences(expression: str | None, field: str | None, classifiers: list[str], expected: str) -> None:
    assert packages.from_metadata(expression, field, classifiers) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("Expat", "MIT"),
        ("GPL-3+ and BSD-3-clause", "GPL-3.0-or-later AND BSD-3-Clause"),
        ("Artistic or GPL-1+", "Artistic-1.0-Perl OR GPL-1.0-or-later"),
        ("GPL-2 or MIT and ISC", "unknown"),
        ("BSD-2-Clause-style", "unknown"),
        ("something of our own", "unknown"),
    ],
)
def test_debian_licences(name: str, expected: str) -> None:
    assert packages.from_debian(name) == expected


def test_copyright_files() -> None:
    head = "Format: https://www.example.org/copyright-format/1.0/\n\n"
    body = "Files: debian/*\nLicense: ISC\n\nFiles: *\nCopyright: somebody\nLicense: GPL-2+\n text\n"
    assert run.copyright_licence(head + body) == "GPL-2.0-or-later"
    assert run.copyright_licence(body) == "unknown"


def test_rendered_pages_lose_the_blanks_of_their_layout() -> None:
    rendered = "LS(1)          User  Commands          LS(1)\n\n\n\nNAME\n       ls - list  the files  \n\n"
    assert run.plain(rendered) == "LS(1) User Commands LS(1)\n\nNAME\n       ls - list the files"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('.TH LS 1 "date"\n.SH NAME\nls \\- list\n.\\" comment\n', "NAME\n       ls - list"),
        (".TH A 1\n.SH A\n.BR ls (1),\n.IR file \\(em \\[u00E9]\\fBx\\fP", "ls(1), file—éx"),
        (".TH A 1\n.SH A\n日本語です", "日本語です"),
    ],
)
def test_pages_are_rendered(tmp_path: Path, source: str, expected: str) -> None:
    demand("groff")
    page = tmp_path / "ls.1.gz"
    page.write_bytes(gzip.compress(source.encode()))
    assert expected in run.page_text(page)


def test_pages_that_cannot_be_read_are_empty(tmp_path: Path) -> None:
    (tmp_path / "latin.1").write_bytes(".SH A\nä".encode("latin-1"))
    (tmp_path / "torn.1.gz").write_bytes(gzip.compress(b"text" * 99)[:-9])
    assert [run.page_text(tmp_path / name) for name in ("latin.1", "torn.1.gz", "absent.1")] == ["", "", ""]


def test_everyone_gets_a_voice() -> None:
    assert level([10, 10, 1000], 120) == 100
    assert level([10, 20], 100) == 20
    assert level([], 100) == 0
    sizes = {f"f{i}": 10 for i in range(20)}
    assert len(take(sizes, 95)) == 9
    assert set(take(sizes, 50)) <= set(take(sizes, 95))


def test_pages_know_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_TEST", "not to be published")
    names = ["module:os", "module:sys", "module:json", "topic:assert", "module:no_such_module"]
    found = render(names)
    assert sorted(found) == ["module:json", "module:os", "module:sys", "topic:assert"]
    assert "JavaScript" in found["module:json"]
    for html in found.values():
        assert "not to be published" not in html
        assert "file:" not in html
        assert str(Path.home()) not in html
    assert render(names) == found


def test_no_page_is_rendered_beyond_the_bound() -> None:
    names = ["module:json", "module:heapq", "module:abc", "module:bisect"]
    sizes = [len(html) for html in render(names).values()]
    assert list(render(names, sum(sizes[:2]))) == names[:2]
    assert list(render(names, sum(sizes[:2]) + 1)) == names[:3]


def test_a_module_that_ends_the_process_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "pages.py"
    source = Path(str(pages.__file__)).read_text()
    copy.write_text(source.replace("CPU_S, WALL_S = 10, 120", "CPU_S, WALL_S = 1, 120"))
    (tmp_path / "spins.py").write_text("while True: pass\n")
    (tmp_path / "quits.py").write_text("import os; os._exit(3)\n")
    monkeypatch.setattr(pages, "__file__", str(copy))
    copy.write_text(
        copy.read_text().replace('if __name__ == "__main__":', f"sys.path.append({str(tmp_path)!r})\nif True:")
    )
    assert sorted(render(["module:json", "module:spins", "module:heapq", "module:quits", "module:abc"])) == [
        *("module:abc", "module:heapq", "module:json")
    ]


def test_records_are_fixed() -> None:
    assert warc_record("https://pydoc.invalid/a", b"<p>") == warc_record("https://pydoc.invalid/a", b"<p>")
    assert b"WARC-Date: 2026-01-01T00:00:00Z" in warc_record("https://pydoc.invalid/a", b"<p>")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_harvests_are_alike_and_a_third_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "module_names", lambda: ["abc", "dis", "enum", "heapq", "json", "os", "string", "typing"])
    first = harvest(tmp_path / "one", SMALL)
    assert first.fresh
    harvest(tmp_path / "two", SMALL)
    one, two = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two
    (tmp_path / "one/prose/mine.jsonl").write_text('{"text": "mine"}')
    installed = run.packages()
    with monkeypatch.context() as machine:
        machine.setattr(run, "packages", lambda: installed[:-5])
        kept = harvest(tmp_path / "one", SMALL)
        assert not kept.fresh
        assert kept.buckets == first.buckets
        asked = harvest(tmp_path / "one", SMALL, again=True)
        assert asked.fresh
        assert asked.buckets["code"] != first.buckets["code"]
    assert (tmp_path / "one/prose/mine.jsonl").exists()
    assert harvest(tmp_path / "one", SMALL, again=True).buckets == first.buckets
    (tmp_path / "one/web/stdlib-00000.warc.gz").unlink()
    assert harvest(tmp_path / "one", SMALL).fresh
    assert (tmp_path / "one/web/stdlib-00000.warc.gz").read_bytes() == two["web/stdlib-00000.warc.gz"]
    for name, bound in {"web": SMALL.web, "code": SMALL.code, "prose": SMALL.prose}.items():
        assert 0 < first.buckets[name].bytes <= bound
    licences = json.loads(one["code/LICENCES.json"])
    assert licences["stdlib"] == "PSF-2.0"
    assert {name.split("/")[1] for name in one if name.startswith("code/")} == {*licences, "LICENCES.json"}


def test_a_machine_without_manuals_gets_pythons_reference(tmp_path: Path) -> None:
    output = Output(tmp_path / "manuals")
    run.write_manuals(output, SMALL, tmp_path / "nothing")
    assert output.note.startswith("manuals: no pages on this machine")
    assert output.summary().documents > 10
    assert (tmp_path / "manuals/en/assert.txt").is_file()


def test_a_machine_without_groff_gets_pythons_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    (tmp_path / "man/man1").mkdir(parents=True)
    (tmp_path / "man/man1/x.1").write_text(".TH X 1\n")
    output = Output(tmp_path / "manuals")
    run.write_manuals(output, SMALL, tmp_path / "man")
    assert output.note.startswith("manuals: no groff on this machine")
    assert output.summary().documents > 10


@pytest.mark.parametrize(
    ("page", "started"),
    [(b".TH X 1\n", []), (b".TH X 1\n.TS\n", ["-t"]), (".TH Ü 1\n.TS\n".encode(), ["-t", "-Kutf8"])],
)
def test_groff_starts_the_preprocessors_that_a_page_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: bytes, started: list[str]
) -> None:
    monkeypatch.setattr(run, "GROFF", ("sh", "-c", "echo $0 $*"))
    (tmp_path / "x.1").write_bytes(page)
    assert run.page_text(tmp_path / "x.1") == " ".join(started or ["sh"])


def test_manuals_in_their_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GROFF", ("sh", "-c", "cat"))
    text = ".TH X 1\n.SH NAME\n" + "Ein Satz über nichts. " * 40
    for name in ("man1/x.1.gz", "de/man1/x.1.gz", "de/man1/short.1.gz", "fr/cat1/x.1.gz"):
        path = tmp_path / "man" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress((text if "short" not in name else "x").encode()))
    (tmp_path / "man/man1/link.1.gz").symlink_to("x.1.gz")
    output = Output(tmp_path / "out")
    run.write_manuals(output, SMALL, tmp_path / "man")
    assert sorted(output.files) == ["LICENCES.json", "de/x.1.txt", "en/x.1.txt"]
    assert json.loads((tmp_path / "out/LICENCES.json").read_text()) == {
        "de/x.1.txt": "unknown",
        "en/x.1.txt": "unknown",
    }


def test_every_bucket_is_announced_and_its_documents_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A harvest takes half a minute, and a person must see what it does."""
    for name in ("manuals", "web", "code", "prose", "tasks"):
        monkeypatch.setattr(run, f"write_{name}", lambda output, *_, **__: [output.count("MIT", 1) for _ in range(3)])
    monkeypatch.setattr("plinth.compute.progress.LOG_INTERVAL_S", 0)
    harvest(tmp_path, progress=ProgressLines())
    lines = capsys.readouterr().err.splitlines()
    label = "collecting text from this machine: "
    counts = [f"{label}0/5 manuals: {n} documents" for n in (1, 2, 3)]
    assert lines[:5] == [f"{label}manuals", *counts, f"{label}1/5"]
    names = [run.LABELS.get(name, name) for name in run.BUCKETS]
    assert [line.removeprefix(label) for line in lines if line.removeprefix(label) in names] == names
