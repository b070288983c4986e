r"""Text from LaTeX, extracted by pylatexenc: math as written, tables as rows of cells, code verbatim.

The preamble, comments, pictures, labels and index entries are removed. Headings and captions become paragraphs. A
footnote becomes a paragraph after the paragraph that contains it. References are removed because their keys are
not text. A citation is replaced by its note, such as `p. 5`. Macros that the file defines are expanded. Files that a
source includes (`\input`) are separate records and are not opened here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
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
    """Return the text and the title of a LaTeX source."""
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
    """Replace glossary keys by the terms that the file defines for them. Keys without a definition in the file are
    removed."""
    if "\\gls" not in source and "\\acr" not in source and "\\Gls" not in source:
        return source
    return _TERM.sub(lambda found: terms.get(found[1].strip(), ""), source)


def _without_keys(text: str) -> str:
    """Remove the spaces and brackets around removed keys, and put the names of theorems in brackets."""
    if _NAMED in text:
        text = _THEOREM.sub(lambda found: f" ({found[1].strip()})." if found[1].strip() else ".", text)
    if _GONE in text:
        text = _AROUND.sub(" ", _BEFORE_MARK.sub("", _EMPTY.sub("", text)))
    return text


def _notes_in_place(text: str) -> str:
    """Move each footnote to a paragraph after the paragraph that contains it. Footnotes inside footnotes are moved
    first."""
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
    """Return the argument formats of macros that pylatexenc does not know or treats differently."""
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


# Macros of a LaTeX file, expanded before it is parsed; macros with arguments that are not text are removed.
#
# Definitions are `\newcommand` and its kin with arguments and defaults, `\def` without delimiters, `\let`,
# `\DeclareMathOperator`, `\newenvironment` and `\newtheorem`. Those that program TeX are left alone, and so are names
# that `latex` knows. Expansion is bounded in depth, number and size: beyond the bounds a macro is nothing.

MAX_DEPTH, MAX_EXPANSIONS, MAX_GROWTH, SPARE_CHARACTERS = 32, 50_000, 4, 1_000_000
_DEFINERS = ("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand")
_ENVIRONMENTS = ("newenvironment", "renewenvironment")
#: Macros that show nothing, by their arguments: `[` may be there, `{` is.
KEYS = {"label": "{", "index": "[{", "sindex": "[{", "glossary": "[{", "nomenclature": "[{{", "indexsee": "{{"}
KEYS |= {"indexseealso": "{{", "printindex": "[", "printglossary": "[", "printglossaries": "", "glsadd": "[{"}
KEYS |= {"makeindex": "[", "makeglossaries": "", "nocite": "{", "phantomsection": "", "addcontentsline": "{{{"}
KEYS |= {"markboth": "{{", "markright": "{", "bibitem": "[{", "pagenumbering": "{", "setcounter": "{{"}
KEYS |= {"addtocounter": "{{", "hypertarget": "{", "linelabel": "{", "zlabel": "{", "footnotemark": "["}
_VERBATIM = ("verbatim", "verbatim*", "lstlisting", "minted", "Verbatim", "comment")
_TOKEN = re.compile(r"%[^\n]*|\\([A-Za-z@]+\*?|.)", re.S)
_SPACE = re.compile(r"(?:\s|%[^\n]*\n)*")
_GROUP = re.compile(r"\\.|%[^\n]*|[{}]", re.S)
_NAME = re.compile(r"\\([A-Za-z@]+)")
_PARAMETERS = re.compile(r"(?:#\d)*")
_PROGRAM = re.compile(r"\\(?:@|catcode|expandafter|csname|if|loop|futurelet|make)")
_PLACE = re.compile(r"##|#(\d)")


@dataclass(frozen=True)
class Macro:
    """Definition of a macro: number of arguments, default of the first argument, and body. If it is an environment,
    `end` is the text inserted at its end."""

    count: int
    default: str | None
    body: str
    end: str | None = None


def expanded(source: str, known: Collection[str]) -> str:
    """Return a LaTeX source without its macro definitions, and with the defined macros expanded.

    Args:
        known: names that must not be redefined.
    """
    return _Expansion(frozenset(known), len(source) * MAX_GROWTH + SPARE_CHARACTERS).text(source, 0)


@dataclass
class _Expansion:
    known: frozenset[str]
    left: int
    expansions: int = MAX_EXPANSIONS
    macros: dict[str, Macro] = field(default_factory=dict)
    environments: dict[str, Macro] = field(default_factory=dict)

    def text(self, source: str, depth: int) -> str:
        out, at = list[str](), 0
        while token := _TOKEN.search(source, at):
            out.append(source[at : token.start()])
            written, at = self._token(source, token, depth)
            out.append(written)
        return "".join((*out, source[at:]))

    def _token(self, source: str, token: re.Match[str], depth: int) -> tuple[str, int]:
        """Return the expansion of a macro or comment, and the position after its arguments."""
        name, at = token[1] or "", token.end()
        plain = name.rstrip("*")
        if not name:
            return token[0], at
        if plain in ("verb", "lstinline"):
            end = source.find(source[at : at + 1], at + 1) if at < len(source) else -1
            return (source[token.start() : end + 1], end + 1) if end > 0 else (token[0], at)
        if plain in ("begin", "end"):
            return self._environment(source, token, depth)
        if (defined := self._define(source, plain, at)) is not None:
            return "", defined
        if plain in KEYS:
            return "", _skipped(source, at, KEYS[plain])
        macro = self.macros.get(plain)
        if macro is None:
            return token[0], at
        return self._called(source, macro, token.start() + 1 + len(plain), depth)

    def _called(self, source: str, macro: Macro, at: int, depth: int) -> tuple[str, int]:
        arguments, end = _arguments(source, at, macro)
        if not macro.count:
            end = _SPACE.match(source, at).end() if _NAME.match(source, at) is None else at  # type: ignore[union-attr]
            end = at if source.count("\n", at, end) > 1 else end
        body = macro.body
        following = source[end : end + 1]
        if body.endswith(r"\xspace"):
            body = body.removesuffix(r"\xspace") + (" " if following.isalnum() or following in ("(", "$") else "")
        written = self._filled(body, arguments, depth)
        joins = following.isalpha() and re.search(r"\\[A-Za-z]+\Z", written)
        return written + (" " if joins else ""), end

    def _filled(self, body: str, arguments: list[str], depth: int) -> str:
        """Return a macro body with its arguments inserted and expanded, or an empty text if a limit of the expansion is
        exceeded."""
        self.expansions -= 1
        if depth >= MAX_DEPTH or self.expansions < 0 or self.left < 0:
            return ""

        def argument(place: re.Match[str]) -> str:
            number = int(place[1]) if place[1] else 0
            return arguments[number - 1] if 0 < number <= len(arguments) else "#" if not place[1] else ""

        written = self.text(_PLACE.sub(argument, body), depth + 1)
        self.left -= len(written)
        return written

    def _environment(self, source: str, token: re.Match[str], depth: int) -> tuple[str, int]:
        name, at = _group(source, token.end())
        if token[1] == "begin" and name in _VERBATIM:
            end = source.find(f"\\end{{{name}}}", at)
            end = len(source) if end < 0 else end
            return ("" if name == "comment" else source[token.start() : end]), end
        macro = self.environments.get(name)
        if macro is None or macro.end is None:
            return source[token.start() : at], at
        if token[1] != "begin":
            return self._filled(macro.end, [], depth), at
        arguments, at = _arguments(source, at, macro)
        return self._filled(macro.body, arguments, depth), at

    def _define(self, source: str, definer: str, at: int) -> int | None:
        """Record the macro definition at position `at`, and return the position after it. Return None if there is no
        definition there."""
        if definer in _DEFINERS or definer == "DeclareMathOperator":
            name, at = _group(source, at)
            count, default, at = _signature(source, at) if definer in _DEFINERS else (0, None, at)
            body, at = _group(source, at)
            body = body if definer in _DEFINERS else rf"\operatorname{{{body}}}"
            self._keep(name, Macro(count, default, body), new=definer == "providecommand")
        elif definer == "def":
            if not (name_at := _NAME.match(source, at)):
                return None
            parameters = _PARAMETERS.match(source, name_at.end())
            if parameters is None or source[parameters.end() : parameters.end() + 1] != "{":
                return None
            body, at = _group(source, parameters.end())
            self._keep(name_at[0], Macro(len(parameters[0]) // 2, None, body))
        elif definer == "let":
            pair = re.compile(r"\s*(\\[A-Za-z@]+)\s*=?\s*(\\[A-Za-z@]+)").match(source, at)
            if pair is None:
                return None
            at = pair.end()
            self._keep(pair[1], self.macros.get(pair[2][1:], Macro(0, None, pair[2])))
        elif definer in _ENVIRONMENTS:
            name, at = _group(source, at)
            count, default, at = _signature(source, at)
            (body, at), (end, at) = (first := _group(source, at)), _group(source, first[1])
            if not _PROGRAM.search(body + end) and f"{{{name}}}" not in body + end and name not in self.known:
                self.environments[name] = Macro(count, default, body, end)
        elif definer == "newtheorem":
            name, at = _group(source, at)
            at = _skipped(source, at, "[")
            caption, at = _group(source, at)
            at = _skipped(source, at, "[")
            self.environments[name] = Macro(1, "", f"\n\n{caption}\ufdd3#1\ufdd3 ", "\n\n")
        else:
            return None
        return at

    def _keep(self, name: str, macro: Macro, new: bool = False) -> None:
        name = name.strip().removeprefix("\\")
        if name in self.known or name in KEYS or _PROGRAM.search(macro.body) or (new and name in self.macros):
            return
        self.macros[name] = macro


def _signature(source: str, at: int) -> tuple[int, str | None, int]:
    """Return a definition's number of arguments, the default of the first argument, and the position after them."""
    number, at = _optional(source, at)
    default, at = _optional(source, at) if number is not None else (None, at)
    return int(number) if number and number.strip().isdecimal() else 0, default, at


def _arguments(source: str, at: int, macro: Macro) -> tuple[list[str], int]:
    found = list[str]()
    if macro.default is not None and macro.count:
        given, at = _optional(source, at)
        found.append(macro.default if given is None else given)
    while len(found) < macro.count:
        argument, at = _group(source, at)
        found.append(argument)
    return found, at


def _skipped(source: str, at: int, form: str) -> int:
    """Return the position after the arguments in the source, whose format is `form`."""
    for one in "*" + form:
        if one == "*":
            at += source[at : at + 1] == "*"
        elif one == "[":
            _, at = _optional(source, at)
        else:
            _, at = _group(source, at)
    return at


def _group(source: str, at: int) -> tuple[str, int]:
    """Return the next argument, and the position after it. An argument is a group in braces, a macro, or a character.
    At the end of the source the argument is empty."""
    start = _SPACE.match(source, at).end()  # type: ignore[union-attr]
    if source[start : start + 1] == "*":
        start = _SPACE.match(source, start + 1).end()  # type: ignore[union-attr]
    if source[start : start + 1] == "\\":
        token = _TOKEN.match(source, start)
        return (token[0], token.end()) if token else ("", at)
    if source[start : start + 1] != "{":
        return source[start : start + 1], min(start + 1, len(source))
    end = _closing(source, start + 1, "}")
    return source[start + 1 : end], min(end + 1, len(source))


def _optional(source: str, at: int) -> tuple[str | None, int]:
    start = _SPACE.match(source, at).end()  # type: ignore[union-attr]
    if source[start : start + 1] != "[":
        return None, at
    end = _closing(source, start + 1, "]")
    return source[start + 1 : end], min(end + 1, len(source))


_BRACKETS = re.compile(r"\\.|%[^\n]*|[{}\]]", re.S)


def _closing(source: str, at: int, mark: str) -> int:
    """Return the position of the bracket that closes the group around `at`, or the end of the source."""
    depth = 0
    for found in (_GROUP if mark == "}" else _BRACKETS).finditer(source, at):
        if found[0] == mark and not depth:
            return found.start()
        depth += (found[0] == "{") - (found[0] == "}")
        if depth < 0:
            return found.start()
    return len(source)
