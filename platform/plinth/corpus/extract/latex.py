"""Text out of LaTeX, by pylatexenc: maths as they are written, tables as rows of cells, code as it stands.

The preamble, comments, pictures and labels go; headings and captions are paragraphs; a citation or reference is its key
in brackets. Macros of the author's own are not expanded outside maths: their arguments are kept as text. Files that a
source includes (`\\input`) are records of their own, and nothing is opened.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from plinth.corpus.extract.page import FACT_CHARACTERS, Text

_BODY = re.compile(r"\\begin\s*\{document\}(.*?)(?:\\end\s*\{document\}|\Z)", re.S)
_TITLE = re.compile(r"\\title\s*(?:\[[^\]]*\])?\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
HEADINGS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph")
CITATIONS = (
    "cite",
    "citep",
    "citet",
    "citealp",
    "citealt",
    "citeauthor",
    "citeyear",
    "parencite",
    "textcite",
    "autocite",
)
REFERENCES = ("ref", "eqref", "pageref", "autoref", "cref", "Cref")
TABLES = ("tabular", "tabular*", "tabularx", "longtable", "tabulary")
LISTINGS = ("verbatim", "verbatim*", "lstlisting", "minted", "Verbatim")
#: Macros whose last argument is their text, by the form of their arguments.
WRAPPERS = {
    "href": "{{",
    "multicolumn": "{{{",
    "multirow": "{{{",
    "textcolor": "{{",
    "colorbox": "{{",
    "resizebox": "{{{",
}
#: Macros of which nothing is kept, by the form of their arguments.
SILENT = {
    "maketitle": "",
    "label": "{",
    "includegraphics": "[{",
    "bibliographystyle": "{",
    "bibliography": "{",
    "vspace": "*{",
    "hspace": "*{",
    "hline": "",
    "cline": "{",
    "input": "{",
    "include": "{",
    "tableofcontents": "",
    "thispagestyle": "{",
    "pagestyle": "{",
    "setlength": "{{",
    "today": "",
}
#: Ends a row of a table; no text has it.
_ROW = "\x1e"


def latex_text(source: str) -> Text:
    """Text of a source, and its title."""
    body = _BODY.search(source)
    text = _plain(body[1] if body else source)
    title = _TITLE.search(source)
    line = " ".join(_plain(title[1]).split())[:FACT_CHARACTERS] if title else ""
    return Text(text, {"title": line} if line else {})


def _plain(source: str) -> str:
    from pylatexenc.latexwalker import LatexWalker

    walker = LatexWalker(source.replace(_ROW, ""), latex_context=_grammar(), tolerant_parsing=True)
    text: str = _renderer().nodelist_to_text(walker.get_latex_nodes()[0])
    return "\n".join(line.rstrip() for line in text.replace(_ROW, "\n").replace("\xa0", " ").split("\n"))


@lru_cache(maxsize=1)
def _grammar() -> Any:
    """Arguments of macros that pylatexenc does not know, or knows otherwise."""
    from pylatexenc import latexwalker
    from pylatexenc.macrospec import EnvironmentSpec, VerbatimArgsParser, std_environment, std_macro

    macros = [std_macro(name, "*[{") for name in (*HEADINGS, "caption")]
    macros += [std_macro(name, "*[[{") for name in CITATIONS]
    macros += [std_macro(name, "*{") for name in REFERENCES]
    macros += [std_macro(name, form) for name, form in {**WRAPPERS, **SILENT}.items()]
    tables = {"tabular": "[{", "longtable": "[{"} | dict.fromkeys(("tabular*", "tabularx", "tabulary"), "{[{")
    environments = [std_environment(name, form) for name, form in tables.items()]
    environments += [
        EnvironmentSpec(name, args_parser=VerbatimArgsParser(verbatim_arg_type="verbatim-environment"))
        for name in LISTINGS
    ]
    found = latexwalker.get_default_latex_context_db()
    found.add_context_category("plinth", prepend=True, macros=macros, environments=environments)
    return found


@lru_cache(maxsize=1)
def _renderer() -> Any:
    from pylatexenc import latex2text as renderers
    from pylatexenc.latex2text import EnvironmentTextSpec, MacroTextSpec, SpecialsTextSpec

    # pylatexenc gives its renderer by this name.
    def last(node: Any, l2tobj: Any) -> str:
        arguments = [one for one in node.nodeargd.argnlist if one is not None] if node.nodeargd else []
        return str(l2tobj.nodelist_to_text(arguments[-1:]))

    def heading(node: Any, l2tobj: Any) -> str:
        return f"\n\n{last(node, l2tobj).strip()}\n\n"

    def key(node: Any, l2tobj: Any) -> str:
        return f"[{last(node, l2tobj).strip()}]"

    def table(node: Any, l2tobj: Any) -> str:
        found = (row.split("&") for row in l2tobj.nodelist_to_text(node.nodelist).split(_ROW))
        rows = (" | ".join(" ".join(cell.split()) for cell in row) for row in found)
        return "\n\n" + "\n".join(row for row in rows if row.strip(" |")) + "\n\n"

    def listing(node: Any, l2tobj: Any) -> str:
        text = getattr(node.nodeargd, "verbatim_text", None)  # none where the listing has no end
        return f"\n\n{text.strip(chr(10))}\n\n" if text else ""

    macros = [MacroTextSpec(name, simplify_repl=heading) for name in (*HEADINGS, "caption")]
    macros += [MacroTextSpec(name, simplify_repl=key) for name in (*CITATIONS, *REFERENCES)]
    macros += [MacroTextSpec(name, simplify_repl=last) for name in WRAPPERS]
    macros += [MacroTextSpec(name, simplify_repl="") for name in SILENT]
    macros += [MacroTextSpec("\\", simplify_repl=_ROW)]
    environments = [EnvironmentTextSpec(name, simplify_repl=table) for name in TABLES]
    environments += [EnvironmentTextSpec(name, simplify_repl=listing) for name in LISTINGS]
    found = renderers.get_default_latex_context_db()
    specials = [SpecialsTextSpec("&", "&")]
    found.add_context_category("plinth", prepend=True, macros=macros, environments=environments, specials=specials)
    return renderers.LatexNodes2Text(math_mode="verbatim", keep_comments=False, latex_context=found)
