"""Text out of LaTeX, by pylatexenc: maths as they are written, tables as rows of cells, code as it stands.

The preamble, comments, pictures, labels and entries of the index go; headings and captions are paragraphs; a footnote
is a paragraph after its own. Of a citation only the place in the work is kept, of a reference nothing: their keys are
no text. Macros that the file defines are expanded (`latex_macros`). Files that a source includes (`\\input`) are
records of their own, and nothing is opened.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from plinth.corpus.extract.latex_macros import expanded
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
    *("Cite", "Citep", "Citet", "citealp", "citeyearpar", "citetitle", "fullcite", "smartcite", "supercite"),
    *("Parencite", "Textcite", "Autocite", "footcite", "cites", "nptextcite", "onlinecite", "shortcite"),
)
REFERENCES = ("ref", "eqref", "pageref", "autoref", "cref", "Cref", "nameref", "vref", "Ref", "subref", "labelcref")
GLOSSARY = ("gls", "Gls", "glspl", "Glspl", "acrshort", "acrlong", "acrfull")
NOTES = {"footnote": "[{", "footnotetext": "[{", "thanks": "{", "endnote": "[{", "sidenote": "[{", "marginpar": "[{"}
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
    "newglossaryentry": "{{",
    "newacronym": "[{{{",
    "crefrange": "{{",
    "usepackage": "[{",
    "documentclass": "[{",
}
#: End of a row of a table, a key that was taken out, a note's begin and end, around a theorem's name. No text has them.
_ROW, _GONE, _NOTE, _NOTE_END, _NAMED = "\x1e", "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_MARKS = str.maketrans("", "", _ROW + _GONE + _NOTE + _NOTE_END + _NAMED)
_KNOWN = frozenset({*HEADINGS, *CITATIONS, *REFERENCES, *GLOSSARY, *NOTES, *WRAPPERS, *SILENT, "caption", "item"})
_EMPTY = re.compile(rf"[ \t]*[(\[](?:see|cf\.|e\.g\.)?[\s,;{_GONE}]*{_GONE}[\s,;{_GONE}]*[)\]]")
_BEFORE_MARK, _AROUND = re.compile(rf"[ \t]*{_GONE}+(?=[\s.,;:!?)\]]|\Z)"), re.compile(rf"[ \t]*{_GONE}+[ \t]*")
_WHOLE_NOTE = re.compile(rf"[ \t]*{_NOTE}([^{_NOTE}{_NOTE_END}]*){_NOTE_END}")
_PARAGRAPHS = re.compile(r"(\n[ \t]*\n\s*)")
_MOST_NESTED = 4
_TERM = re.compile(rf"\\(?:{'|'.join(GLOSSARY)})\*?\s*(?:\[[^\]]*\])?\s*\{{([^{{}}]*)\}}")
_THEOREM = re.compile(rf"{_NAMED}([^{_NAMED}]*){_NAMED}")
_ENTRY = re.compile(r"\\newglossaryentry\s*\{([^{}]*)\}\s*\{.*?\bname\s*=\s*\{?([^{},]*)", re.S)
_ACRONYM = re.compile(r"\\newacronym\s*(?:\[[^\]]*\])?\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


def latex_text(source: str) -> Text:
    """Text of a source, and its title."""
    terms = dict(_ENTRY.findall(source)) | dict(_ACRONYM.findall(source))
    source = expanded(_terms_in_place(source.translate(_MARKS), terms), _KNOWN)
    body = _BODY.search(source)
    text = _plain(body[1] if body else source)
    title = _TITLE.search(source)
    line = " ".join(_plain(title[1]).split())[:FACT_CHARACTERS] if title else ""
    return Text(text, {"title": line} if line else {})


def _plain(source: str) -> str:
    from pylatexenc.latexwalker import LatexWalker

    walker = LatexWalker(source, latex_context=_grammar(), tolerant_parsing=True)
    text: str = _renderer().nodelist_to_text(walker.get_latex_nodes()[0])
    text = _without_keys(text.replace(_ROW, "\n").replace("\xa0", " "))
    return "\n".join(line.rstrip() for line in _notes_in_place(text).split("\n"))


def _terms_in_place(source: str, terms: dict[str, str]) -> str:
    """Terms of the file's own glossary for their keys; a key of another file's is no text."""
    if "\\gls" not in source and "\\acr" not in source and "\\Gls" not in source:
        return source
    return _TERM.sub(lambda found: terms.get(found[1].strip(), ""), source)


def _without_keys(text: str) -> str:
    """A text without the space, and the brackets, that were around keys; theorems with their names in brackets."""
    if _NAMED in text:
        text = _THEOREM.sub(lambda found: f" ({found[1].strip()})." if found[1].strip() else ".", text)
    if _GONE in text:
        text = _AROUND.sub(" ", _BEFORE_MARK.sub("", _EMPTY.sub("", text)))
    return text


def _notes_in_place(text: str) -> str:
    """Notes as paragraphs after the one they stand in, inner ones first."""
    if _NOTE not in text:
        return text
    out = list[str]()
    for paragraph in _PARAGRAPHS.split(text):
        notes = list[str]()
        for _ in range(_MOST_NESTED):
            notes += (" ".join(note.split()) for note in _WHOLE_NOTE.findall(paragraph))
            paragraph = _WHOLE_NOTE.sub("", paragraph)
        out.append("\n\n".join((paragraph, *notes)))
    return "".join(out).replace(_NOTE, "").replace(_NOTE_END, "")


@lru_cache(maxsize=1)
def _grammar() -> Any:
    """Arguments of macros that pylatexenc does not know, or knows otherwise."""
    from pylatexenc import latexwalker
    from pylatexenc.macrospec import EnvironmentSpec, VerbatimArgsParser, std_environment, std_macro

    macros = [std_macro(name, "*[{") for name in (*HEADINGS, "caption")]
    macros += [std_macro(name, "*[[{") for name in CITATIONS]
    macros += [std_macro(name, "*{") for name in REFERENCES]
    macros += [std_macro(name, form) for name, form in NOTES.items()]
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

    def place(node: Any, l2tobj: Any) -> str:
        stated = [one for one in node.nodeargd.argnlist[1:-1] if one is not None] if node.nodeargd else []
        text = ", ".join(said for one in stated if (said := l2tobj.nodelist_to_text([one]).strip(" []")))
        return f"[{text}]" if text else _GONE

    def note(node: Any, l2tobj: Any) -> str:
        return f"{_NOTE}{' '.join(last(node, l2tobj).split())}{_NOTE_END}"

    def table(node: Any, l2tobj: Any) -> str:
        found = (row.split("&") for row in l2tobj.nodelist_to_text(node.nodelist).split(_ROW))
        rows = (" | ".join(" ".join(cell.split()) for cell in row) for row in found)
        return "\n\n" + "\n".join(row for row in rows if row.strip(" |")) + "\n\n"

    def verbatim(node: Any, l2tobj: Any) -> str:
        return str(getattr(node.nodeargd, "verbatim_text", None) or "")

    def listing(node: Any, l2tobj: Any) -> str:
        text = getattr(node.nodeargd, "verbatim_text", None)  # none where the listing has no end
        return f"\n\n{text.strip(chr(10))}\n\n" if text else ""

    macros = [MacroTextSpec(name, simplify_repl=heading) for name in (*HEADINGS, "caption")]
    macros += [MacroTextSpec(name, simplify_repl=place) for name in CITATIONS]
    macros += [MacroTextSpec(name, simplify_repl=_GONE) for name in REFERENCES]
    macros += [MacroTextSpec(name, simplify_repl=note) for name in NOTES]
    macros += [MacroTextSpec("verb", simplify_repl=verbatim)]
    macros += [MacroTextSpec(name, simplify_repl=last) for name in WRAPPERS]
    macros += [MacroTextSpec(name, simplify_repl="") for name in SILENT]
    macros += [MacroTextSpec("\\", simplify_repl=_ROW)]
    environments = [EnvironmentTextSpec(name, simplify_repl=table) for name in TABLES]
    environments += [EnvironmentTextSpec(name, simplify_repl=listing) for name in LISTINGS]
    found = renderers.get_default_latex_context_db()
    specials = [SpecialsTextSpec("&", "&")]
    found.add_context_category("plinth", prepend=True, macros=macros, environments=environments, specials=specials)
    return renderers.LatexNodes2Text(math_mode="verbatim", keep_comments=False, latex_context=found)
