"""Normal forms of addresses, domains and licences, so that a rule means what a person means by it.

    address    no scheme, no `www.`, no default port, no fragment, no last slash; percent escapes decoded where the
               character needs none, and in capitals where it does; the query stays as it is otherwise
    domain     a host (`text.hosts`) without `www.`
    licence    lower-case identifiers of an SPDX expression

A name within a source (no scheme) has the same normal form on both sides of a comparison, and that is all it needs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from plinth import text

#: Characters that an address may hold as they are: RFC 3986, section 2.2 and 2.3, and the escapes themselves.
_PATH_SAFE = "/:@!$&'()*+,;=-._~"
_QUERY_SAFE = _PATH_SAFE + "?"
_PLAIN = re.compile(r"[A-Za-z0-9/:@!$&'()*+,;=\-._~?]*")
_PORTS = {"http": "80", "https": "443"}
_PORT = re.compile(r":(\d*)\Z")
_WORDS = frozenset({"and", "or", "with"})


def address(uri: str) -> str:
    """The normal form of an address or of a name within a source."""
    rest = uri.strip().partition("#")[0]
    scheme, found, after = rest.partition("://")
    scheme, rest = (scheme.lower(), after) if found else ("", rest)
    place, question, query = rest.partition("?")
    name, slash, path = place.partition("/")
    if scheme:
        port = _PORT.search(name)
        number = port[1] if port and port[1] != _PORTS.get(scheme) else ""
        name = (text.host(f"//{name}") or name) + (f":{number}" if number else "")
    else:
        name = text.folded(name)
    whole = f"{name.removeprefix('www.')}{slash}{_escaped(path, _PATH_SAFE)}".rstrip("/")
    return f"{whole}?{_escaped(query, _QUERY_SAFE)}" if question and query else whole


def domain(name: str) -> str:
    """The normal form of a host name.

    Raises:
        ValueError: no host name with a dot in it.
    """
    found = text.domain(name)
    if text.is_ip(found):
        raise ValueError(text.EXPECTED)
    return found


def domains_of(uri: str) -> list[str]:
    """The host of an address and every domain above it that has a dot, longest first; none of a name in a source."""
    return text.domains(text.host(uri, bare=True).removeprefix("www."))


@lru_cache(maxsize=65536)
def licences_of(expression: str) -> frozenset[str]:
    """The identifiers of an SPDX expression, in lower case."""
    words = re.split(r"[\s()]+", expression.strip().lower())
    return frozenset(word for word in words if word and word not in _WORDS)


def _escaped(text: str, safe: str) -> str:
    """Every escape that is none is written out, every character that must be escaped is; both once. A `%` that begins
    no escape stands for itself."""
    if _PLAIN.fullmatch(text):
        return text
    pieces = re.split(r"(%[0-9A-Fa-f]{2})", text)
    return "".join(
        _decoded(piece) if at % 2 else quote(piece, safe + "%", errors="replace") for at, piece in enumerate(pieces)
    )


def _decoded(escape: str) -> str:
    character = unquote_to_bytes(escape).decode("latin-1")
    return character if character.isascii() and (character.isalnum() or character in "-._~") else escape.upper()
