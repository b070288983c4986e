"""Text of PDF and LaTeX files: what is there, what breaks, and how long a page may take."""

from __future__ import annotations

import io
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.corpus.documents.normalize import fix_boundaries
from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import Answer, ExtractionFailure, Page, Text, page_bytes, page_of
from plinth.corpus.sources.parameters import Extraction


def extract(*pages: Page, seconds: float = 5.0) -> list[Answer]:
    with Extractor(Extraction(seconds_per_page=seconds)) as extractor:
        return extractor.extract(pages)


def pdf(*pages: str, info: str = "/Title (On bridges) /CreationDate (D:20240203040506Z)") -> bytes:
    """A PDF with the lines of each page in Helvetica, written by the format's description (ISO 32000-1, annex H)."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        shown = "".join(f"({line}) Tj 0 -14 Td " for line in page.split("\n"))
        content = f"BT /F1 12 Tf 72 720 Td {shown}ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects.append(f"<< {info} >>")
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, io.SEEK_END)
    for number, one in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{one}\nendobj\n".encode())
    table = out.tell()
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}".encode())
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>\n".encode())
    out.write(f"startxref\n{table}\n%%EOF\n".encode())
    return out.getvalue()


def test_a_page_of_any_kind_survives_the_way_to_the_worker() -> None:
    for page in (Page(b"x", "utf-8"), Page(b"%PDF", kind="pdf"), Page(b"", kind="latex")):
        assert page_of(memoryview(page_bytes(page))) == page


class TestPdf:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("pypdfium2")

    def test_pages_lines_title_and_date(self) -> None:
        (found,) = extract(Page(pdf("The first page ends in the\n1", "2\nmiddle of a sentence.\nA line."), kind="pdf"))
        assert isinstance(found, Text)
        assert found.text == "The first page ends in the\n1\f2\nmiddle of a sentence.\nA line."
        assert found.facts == {"title": "On bridges", "date": "2024-02-03"}
        assert fix_boundaries(found.text) == "The first page ends in the middle of a sentence.\nA line."

    def test_what_another_library_writes(self) -> None:
        figures = pytest.importorskip("matplotlib.figure")
        figure = figures.Figure()
        for row, cells in enumerate((("Name", "A"), ("one", "1.5"))):
            for column, cell in enumerate(cells):
                figure.text(0.1 + 0.3 * column, 0.8 - 0.1 * row, cell)
        out = io.BytesIO()
        figure.savefig(out, format="pdf")
        (found,) = extract(Page(out.getvalue(), kind="pdf"))
        assert isinstance(found, Text)
        assert found.text.split() == ["Name", "A", "one", "1.5"]

    def test_damage_is_a_failure_and_costs_itself(self) -> None:
        whole = pdf("text")
        bodies = [b"", b"no PDF", whole[:60], b"%PDF-1.7\n" + b"[" * 100_000, whole]
        *broken, last = extract(*(Page(body, kind="pdf") for body in bodies))
        assert all(isinstance(one, ExtractionFailure) and one.reason == "extract_failed" for one in broken)
        assert isinstance(last, Text)
        assert last.text == "text"

    def test_time_is_limited_by_page(self) -> None:
        """A page draws a form that draws another twice, and so on; its time limit is its own, whatever the result."""
        forms = [
            f"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 11 /Resources << /XObject << /X {n + 5} 0 R >> "
            f">> >>\nstream\n/X Do /X Do\nendstream"
            for n in range(30)
        ]
        objects = [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 34 0 R "
            "/Resources << /XObject << /X 4 0 R >> >> >>",
            *forms,
            "<< /Length 5 >>\nstream\n/X Do\nendstream",
        ]
        body = "%PDF-1.4\n" + "".join(f"{n} 0 obj\n{one}\nendobj\n" for n, one in enumerate(objects, 1))
        body += "trailer << /Root 1 0 R >>\n"
        hostile, after = extract(Page(body.encode(), kind="pdf"), Page(pdf("text"), kind="pdf"), seconds=0.5)
        assert not isinstance(hostile, ExtractionFailure) or hostile.reason == "extract_timeout"
        assert isinstance(after, Text)


@pytest.mark.parametrize(("kind", "package"), [("pdf", "pypdfium2"), ("latex", "pylatexenc")])
def test_files_with_pieces_cut_out_and_changed_give_text_or_a_reason(kind: str, package: str) -> None:
    pytest.importorskip(package)
    picks, whole = random.Random(kind), pdf("one\ntwo", "three") if kind == "pdf" else LATEX.encode()
    bodies = []
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(picks.randrange(1, 6)):
            at = picks.randrange(len(data))
            data[at : at + picks.randrange(40)] = picks.choice([b"", picks.randbytes(9), data[at : at + 200]])
        bodies.append(bytes(data))
    found = extract(*(Page(body, kind=kind) for body in bodies))
    assert len(found) == len(bodies)
    assert {one.reason for one in found if isinstance(one, ExtractionFailure)} <= {"extract_failed", "extract_timeout"}
    for one in found:
        assert isinstance(one, ExtractionFailure) or one.text.encode() is not None


STEPS = """
import os, signal, time
from plinth.compute.worker_process import ItemWatch
counts = os.memfd_create("counts")
os.ftruncate(counts, 16)
watch = ItemWatch(counts)
watch.limit(cpu_s=0.4)
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
watch.begin()
for _ in range(8):
    watch.renew()
    work(0.1)
print("steps", flush=True)
work(2)
print("too long")
"""


def test_every_step_of_an_item_has_the_limit_for_itself() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("steps\n", -signal.SIGPROF)


LATEX = r"""
\documentclass{article}
\newcommand{\R}{\mathbb{R}}
\title{On \emph{nice} things}
\begin{document}
\maketitle
% a comment
\section{Introduction}
As \citet{knuth} says~\cite{a,b} (Section~\ref{sec:x}): 50\% for all $x \in \R$.
\begin{equation}\label{eq:1} E = mc^2 \end{equation}
\begin{table}\caption{Results}
\begin{tabular}{l|rr}\hline
 Name & A & B \\ \hline
 \textbf{one} & 1.0 & $2^3$ \\
\end{tabular}\end{table}
\begin{verbatim}
int main() { return 0; } % kept
\end{verbatim}
\includegraphics[width=3cm]{x.png}
Gr\"o{\ss}e. \href{https://e.org}{A link}.
\bibliographystyle{plain}\bibliography{refs}
\end{document}
"""


class TestLatex:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("pylatexenc")

    def test_text_with_maths_and_tables(self) -> None:
        (found,) = extract(Page(LATEX.encode(), kind="latex"))
        assert isinstance(found, Text)
        assert found.facts == {"title": "On nice things"}
        assert [line.strip() for line in found.text.splitlines() if line.strip()] == [
            "Introduction",
            r"As says (Section): 50% for all $x \in \mathbb{R}$.",
            r"\begin{equation} E = mc^2 \end{equation}",
            "Results",
            "Name | A | B",
            "one | 1.0 | $2^3$",
            "int main() { return 0; } % kept",
            "Größe. A link.",
        ]

    def test_damage_and_depth_cost_themselves(self) -> None:
        bodies = [b"\\begin{a}" * 5000, b"{" * 5000, b"\\begin{verbatim}", b"$" * 9999, b"\xff\xfe", LATEX.encode()]
        found = extract(*(Page(body, kind="latex") for body in bodies))
        assert [isinstance(one, ExtractionFailure) for one in found[:2]] == [True, True]
        assert isinstance(found[-1], Text)


@pytest.mark.parametrize(("kind", "package"), [("pdf", "pypdfium2"), ("latex", "pylatexenc")])
def test_files_become_documents(tmp_path: Path, kind: str, package: str) -> None:
    pytest.importorskip(package)
    from plinth.compute.context import Context
    from plinth.corpus.documents import documents
    from plinth.corpus.sources.inventory import inventory
    from plinth.corpus.sources.parameters import Bucket, Documents
    from plinth.storage.parts import read_table
    from plinth.storage.workspace import Workspace
    from tests.plinth.corpus.sources.conftest import make_source

    whole = pdf("A page that breaks a sen-\ntence; a sentence.", "Another.") if kind == "pdf" else LATEX.encode()
    for name, data in {"a": whole, "b": b"\x89PNG\r\n\x1a\n\0\0"}.items():
        (tmp_path / f"{name}.{'pdf' if kind == 'pdf' else 'tex'}").write_bytes(data)
    bucket = Bucket(description="x", owner="x", sources=(make_source(kind, path=str(tmp_path)),))
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = documents.run(ctx, "papers", bucket, Documents(max_reject_rate=1), inventory(bucket, tmp_path))
    (row,) = read_table(ctx.store, made.named("part-")[0]).to_pylist()
    assert row["text"].startswith({"pdf": "A page that breaks", "latex": "Introduction"}[kind])
    assert made.stats["rejects"] == ({"extract_failed": 1} if kind == "pdf" else {"binary": 1})
    assert made.params["sources"][0]["libraries"].keys() >= {package}
