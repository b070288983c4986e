"""Catalogs of extensions by group (annotators, readers, gates, launchers, probes), built in or from installed packages.

    core             listed in the table of its catalog: `module:attribute`
    ring             entry points of Plinth's own distribution; built in like the core's
    other packages   entry points of the catalog's group (`[project.entry-points."plinth.annotators"]`)

Members are imported on first use; all are checked in the same way. If a ring package is not installed, using one of
its members is an error that names the missing package. A member of another distribution has an `Origin`, which is part
of the identity of its outputs. See docs/extending.md.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib.machinery
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, metadata, util
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from plinth import fingerprint
from plinth.entry_points import OWN, Entry, absent, entries, not_here
from plinth.errors import ExtensionError, MissingError, RecipeError
from plinth.records import Frozen

T = TypeVar("T")
F = TypeVar("F", bound=Frozen)

#: Suffix of a repeated member's other names.
_REPEATED = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


class NoParams(Frozen):
    """Parameters of members without settings."""


class Origin(Frozen):
    """Distribution, version and source digest of a member from another package."""

    distribution: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} sha256:{self.sha256}"


class Catalogue(Mapping[str, T], Generic[T]):
    """Catalog of one group's members by name. A member is imported and checked when it is first looked up.

    Looking up a name that two packages claim, or whose member cannot be imported or has another type, raises
    ExtensionError. Iterating imports nothing. Built-in members come first, in the order of their table.

    Args:
        group: group of the entry points, such as `plinth.annotators`.
        noun: noun for messages, such as `annotator`.
        kind: dataclass of all members; it has a `name`.
        built_in: members of the core: name -> `module:attribute`.
        reserved: other names that packages must not use.
        repeated: built-in members that can be used several times: `NAME_x` is the member `NAME` under another name.
    """

    def __init__(
        self,
        group: str,
        noun: str,
        kind: type[T],
        built_in: Mapping[str, str],
        reserved: tuple[str, ...] = (),
        repeated: tuple[str, ...] = (),
    ) -> None:
        self.group, self.noun = group, noun
        self._kind, self._core, self._reserved, self._repeated = kind, built_in, reserved, repeated
        self._loaded: dict[Entry, tuple[T, Origin | None]] = {}

    def __getitem__(self, name: str) -> T:
        return self._member(name)[0]

    def __contains__(self, name: object) -> bool:
        own = self._own(str(name))
        return own in self._core or any(entry.name == own for entry in self._entries())

    def __iter__(self) -> Iterator[str]:
        others = {entry.name for entry in self.installed()} - set(self.built_in)
        return iter((*self.built_in, *sorted(others)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of the members in this repository, core members first."""
        ring = [entry.name for entry in self._entries() if entry.distribution == OWN]
        return (*self._core, *(name for name in ring if name not in self._core))

    def installed(self) -> tuple[Entry, ...]:
        """Return the entry points of other packages, sorted by name and package."""
        return tuple(entry for entry in self._entries() if entry.distribution != OWN)

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in entries() if entry.group == self.group)

    def origin(self, name: str) -> Origin | None:
        """Return the package that a member comes from, or None for a built-in member."""
        return self._member(name)[1]

    def find(self, name: str) -> T:
        """Return the member with this name.

        Raises:
            RecipeError: there is no such member; the error suggests the nearest name.
            ExtensionError: the member cannot be used.
        """
        if name not in self:
            if needed := absent(self.group).get(name):
                raise not_here(f"the {self.noun} {name!r}", needed)
            remedy = nearest(name, self) or "install the package that has it; `plinth doctor` lists installed packages"
            raise RecipeError(f"no {self.noun} {name!r}", expected=", ".join(self), remedy=remedy)
        return self[name]

    def parameters(self, name: str, raw: Mapping[str, Any], at: str) -> Any:
        """Return the parameters of a member, from the recipe's mapping at the key `at`.

        Raises:
            RecipeError: there is no such member, or a parameter is unknown or invalid.
        """
        model: type[Frozen] = cast(Any, self.find(name)).params
        for given in raw:
            if given not in model.model_fields:
                known = ", ".join(model.model_fields) or "no parameters"
                remedy = nearest(given, model.model_fields)
                raise RecipeError(f"{self.noun} {name} has no parameter {given!r}", expected=known, remedy=remedy)
        return validated(model, raw, at)

    def _member(self, name: str) -> tuple[T, Origin | None]:
        own = self._own(name)
        entry = self._entry(own)
        if entry not in self._loaded:
            self._loaded[entry] = self._load(entry)
        found, origin = self._loaded[entry]
        return (found if own == name else dataclasses.replace(cast(Any, found), name=name)), origin

    def _own(self, name: str) -> str:
        """Return the member's own name; for a repeated member, without the suffix."""
        if not _REPEATED.fullmatch(name) or any(entry.name == name for entry in self._entries()):
            return name
        return next((one for one in self._repeated if name.startswith(f"{one}_")), name)

    def _entry(self, name: str) -> Entry:
        claims = sorted((one for one in self._entries() if one.name == name), key=lambda one: one.distribution != OWN)
        if name in self._core or (claims and name in self._reserved):
            own = self._core.get(name, "")
            claims.insert(0, Entry(group=self.group, name=name, value=own, distribution=OWN, version=""))
        if not claims:
            raise KeyError(name)
        if len(claims) > 1:
            raise ExtensionError(
                f"the {self.noun} {name!r} exists {len(claims)} times",
                found=", ".join(f"{entry.package} ({entry.value or 'built in'})" for entry in claims),
                expected="one package for each name",
                remedy=f"uninstall {claims[-1].distribution}, or rename its entry point in the group {self.group}",
            )
        return claims[0]

    def _load(self, entry: Entry) -> tuple[T, Origin | None]:
        module, _, attribute = entry.value.partition(":")
        try:
            found: Any = attrgetter(attribute)(import_module(module))
        except (Exception, SystemExit) as error:
            raise self._unusable(entry, "cannot be imported", f"{type(error).__name__}: {error}") from error
        faults = _faults(found, self._kind, entry.name)
        if faults:
            raise self._unusable(entry, "has the wrong interface", "; ".join(faults))
        if entry.distribution == OWN:
            return found, None
        origin = Origin(distribution=entry.distribution, version=entry.version, sha256=self._digest(entry, module))
        if hasattr(found, "version"):
            found = dataclasses.replace(found, version=f"{found.version} ({origin})")
        return found, origin

    def _digest(self, entry: Entry, module: str) -> str:
        try:
            return source_digest(module, _tops(entry.distribution))
        except (OSError, SyntaxError, ValueError) as error:
            raise self._unusable(entry, "has no readable source", str(error)) from error

    def _unusable(self, entry: Entry, why: str, found: str) -> ExtensionError:
        return ExtensionError(
            f"the {self.noun} {entry.name!r} of {entry.package} {why}",
            found=found,
            expected=f"{entry.value} to be a {self._kind.__module__}.{self._kind.__name__}",
            remedy=f"fix or uninstall {entry.distribution}; see docs/extending.md",
        )


def nearest(name: str, known: typing.Iterable[str], *, cutoff: float = 0.4) -> str | None:
    """Return a hint with the closest name, or None if none is similar (`difflib`'s ratio)."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else None


def late(reference: str) -> Callable[..., Any]:
    """Return a function that is imported when it is first called.

    Args:
        reference: `module:attribute`.
    """

    def call(*args: Any, **named: Any) -> Any:
        module, _, attribute = reference.partition(":")
        return getattr(import_module(module), attribute)(*args, **named)

    return call


def require(module: str, extra: str) -> Any:
    """Import a library that an extra of Plinth installs.

    Raises:
        MissingError: the library is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingError(
            f"{module.partition('.')[0]} is not installed", found=error, remedy=f"pip install 'plinth[{extra}]'"
        ) from error


def validated(model: type[F], raw: Mapping[str, Any], at: str) -> F:
    """Return the validated parameters in the recipe's mapping at the key `at`.

    Raises:
        RecipeError: a value is invalid; the error names the first such key.
    """
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join((at, *map(str, first["loc"])))
        raise RecipeError(f"{where}: {first['msg']}", found=first.get("input"), remedy="correct the value") from error


def source_digest(module: str, tops: frozenset[str] = frozenset()) -> str:
    """Return the SHA-256 of a module's source and of all its direct and indirect imports from its own package.

    Nothing is executed. The digest covers modules that `import` statements name, anywhere in the code, if they are
    below the top-level package of `module` or below one of `tops`. Other files (data, modules imported by a computed
    name) are identified only by the version of the distribution.

    Raises:
        FileNotFoundError: the module has no file.
    """
    inside = tops | {module.partition(".")[0]}
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(name) if name not in seen and name.partition(".")[0] in inside else None
        if path is None:
            continue
        data = path.read_bytes()
        seen[name] = hashlib.sha256(data).hexdigest()
        waiting += [name.rpartition(".")[0]] * ("." in name)
        if path.suffix == ".py":
            waiting += _imported(data, name, path.name == "__init__.py")
    if module not in seen:
        raise FileNotFoundError(f"no file of the module {module}")
    return fingerprint.digest(seen)


def _faults(found: Any, kind: type[Any], name: str) -> list[str]:
    """Return the differences between a member and the interface of its kind, one per field."""
    if not isinstance(found, kind):
        return [f"{found!r} is a {type(found).__name__}"]
    hints = typing.get_type_hints(kind)
    faults = [
        f"{field.name} is {getattr(found, field.name)!r}"
        for field in dataclasses.fields(cast(Any, kind))
        if not _fits(getattr(found, field.name), hints[field.name])
    ]
    return faults or [f"its name is {found.name!r}, but its entry point is {name!r}"] * (found.name != name)


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a value matches the outermost type of a field's annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is type:
        return isinstance(value, type) and issubclass(value, inner[0])
    if origin is Callable:
        return callable(value)
    if origin is typing.Literal:
        return value in inner
    if origin is None:
        return isinstance(value, hint)
    if type(None) in inner:
        return value is None or any(_fits(value, each) for each in inner if each is not type(None))
    return isinstance(value, origin)


def _tops(distribution: str) -> frozenset[str]:
    """Return the top-level packages and modules of a distribution, from its list of files."""
    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        return frozenset()
    return frozenset(Path(file.parts[0]).stem for file in files if file.suffix == ".py" and file.parts[0] != "..")


def _file(name: str) -> Path | None:
    """Return the file of a module, found without importing its packages, or None if the module has no file."""
    top, *rest = name.split(".")
    spec = util.find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    for place in spec.submodule_search_locations or ():
        base = Path(place, *rest)
        files = [base / "__init__.py", *(base.with_name(base.name + end) for end in importlib.machinery.all_suffixes())]
        for file in files:
            if file.is_file():
                return file
    return None


def _imported(data: bytes, name: str, is_package: bool) -> Iterator[str]:
    """Yield every dotted name that the import statements of a module could mean."""
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*up, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
