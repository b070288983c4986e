"""LaTeX as a reader sees it: no keys, notes in their place, the file's own macros expanded."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

pytest.importorskip("pylatexenc")

from plinth.corpus.extract.latex import latex_text


def read(body: str, preamble: str = "") -> str:
    """The text of a document in lines without those that are blank."""
    source = f"\\documentclass{{book}}\n{preamble}\n\\begin{{document}}\n{body}\n\\end{{document}}"
    return "\n".join(line.strip() for line in latex_text(source).text.splitlines() if line.strip())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"Mills\index{mill!water|(}\index{water!mill} grind\index[people]{Miller, A.}.", "Mills grind."),
        (r"Mills\glossary{mill}\label{def:mill}\indexsee{mill}{water}\index{a|seealso{b}} grind.", "Mills grind."),
        (r"A proof~\cite{knuth84} of this.", "A proof of this."),
        (r"A proof~\cite{knuth84}.", "A proof."),
        (r"A proof~\cite[Chapter~2]{knuth84}.", "A proof [Chapter 2]."),
        (r"A proof \citep[see][p.~3]{a,b}, and more.", "A proof [see, p. 3], and more."),
        (r"A proof (\cite{a}; \citet{b}).", "A proof."),
        (r"A proof (see \cref{sec:one,sec:two}) of this.", "A proof of this."),
        (r"By (\ref{eq:1}) and \eqref{eq:2}, it holds.", "By and, it holds."),
        (r"\section{Mills}\label{sec:mills} \nocite{*} Text.", "Mills\nText."),
        (r"\begin{equation} a = b\label{eq:ab}\index{x} \end{equation}", r"\begin{equation} a = b \end{equation}"),
        (r"\index{a}\printindex \printglossary[title=Terms] \addcontentsline{toc}{chapter}{Index}", ""),
        (r"\begin{thebibliography}{9}\bibitem[K84]{knuth84} Knuth, 1984.\end{thebibliography}", "9 Knuth, 1984."),
    ],
)
def test_keys_are_no_text(body: str, text: str) -> None:
    assert read(body) == text


def test_a_footnote_is_a_paragraph_after_its_own() -> None:
    body = r"A mill\footnote{With \emph{two} stones.\footnote{Of granite.}} grinds\footnote{Slowly.} rye."
    body += "\n\nThe end."
    assert read(body) == "A mill grinds rye.\nOf granite.\nSlowly.\nWith two stones.\nThe end."


def test_terms_of_the_glossary_are_words() -> None:
    preamble = "\\newglossaryentry{mil}{name={mill}, description={a machine}}\\newacronym{wm}{WM}{water mill}"
    assert read(r"A \gls{mil} is a \gls{wm}, not an \gls{elsewhere}.", preamble) == "A mill is a WM, not an ."


@pytest.mark.parametrize(
    ("preamble", "body", "text"),
    [
        (r"\newcommand{\define}[1]{\textbf{#1}\index{#1}}", r"A \define{mill}\index{x} is.", "A mill is."),
        (r"\newcommand{\mill}{water mill}", r"A \mill{} and a \mill.", "A water mill and a water mill."),
        (r"\newcommand*\mill{water mill}", r"A \mill\ grinds.", "A water mill grinds."),
        (r"\newcommand{\mill}{water mill\xspace}", r"A \mill grinds, a \mill.", "A water mill grinds, a water mill."),
        (r"\newcommand{\by}[2][rye]{#2 of #1}", r"\by{flour}, \by[oats]{flakes}.", "flour of rye, flakes of oats."),
        (r"\renewcommand{\by}[1]{by #1}", r"\by x and \by{\emph{y}}.", "by x and by y."),
        (r"\def\pair#1#2{#1 and #2}", r"\pair{rye}{oats}, \pair ab.", "rye and oats, a and b."),
        (r"\def\until#1.{#1}", r"\until end. More.", "end. More."),  # with a delimiter: left alone
        (r"\let\old\emph \let\mill=\grain \newcommand{\grain}{rye}", r"\old{a}.", "a."),
        (r"\newcommand{\R}{\mathbb{R}}", r"$x \in \R$ and $\R^2$", r"$x \in \mathbb{R}$ and $\mathbb{R}^2$"),
        (r"\newcommand{\a}{\alpha}", r"$\a x$", r"$\alpha x$"),
        (r"\DeclareMathOperator{\rank}{rank}", r"$\rank A$", r"$\operatorname{rank}A$"),
        (r"\newcommand{\x}{\y{} mill}\newcommand{\y}{old}", r"An \x.", "An old mill."),
        (r"\newenvironment{speech}[1]{#1 says: }{ (end)}", r"\begin{speech}{A}Hi\end{speech}", "A says: Hi (end)"),
        (r"\newtheorem{thm}{Theorem}[section]", r"\begin{thm}[Euler]It holds.\end{thm}", "Theorem (Euler). It holds."),
        (r"\newtheorem*{lem}{Lemma}", r"\begin{lem}\label{l}It holds.\end{lem}", "Lemma. It holds."),
        (r"\renewcommand{\section}[1]{}", r"\section{Mills}", "Mills"),
        (r"% \newcommand{\mill}{none}", r"A \mill{word}.", "A word."),
        (r"\newcommand{\mill}{grain}", "\\begin{verbatim}\n\\mill % kept\n\\end{verbatim}", r"\mill % kept"),
        (r"\newcommand{\mill}{grain}", r"\verb|\mill|", r"\mill"),
        (r"\newcommand{\cut", r"Text.", ""),
    ],
)
def test_macros_of_the_file_are_expanded(preamble: str, body: str, text: str) -> None:
    assert read(body, preamble) == text


@pytest.mark.parametrize(
    "preamble",
    [
        r"\newcommand{\x}{\x}",
        r"\newcommand{\x}{\x\x}",
        r"\def\x{\y\y}\def\y{\x\x}",
        r"\newcommand{\x}[1][\x]{#1#1}",
        "".join(rf"\def\{a}{{\{b}\{b}}}" for a, b in pairwise("abcdefghijklmnopqrstuvw")) + r"\def\w{z}\def\x{\a}",
    ],
)
def test_expansion_is_bounded(preamble: str) -> None:
    began = time.process_time()
    found = read(r"Begin \x{} end.", preamble)
    assert found.startswith("Begin")
    assert found.endswith("end.")
    assert time.process_time() - began < 10
    assert len(found) < 2_000_000
