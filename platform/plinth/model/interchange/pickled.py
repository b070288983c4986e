"""Pickles read as inert records, so that reading a file from elsewhere runs no code of the file's choice.

`pickle.load` imports and calls whatever the file names. `read` never imports: each class or function that a pickle
names becomes a subclass of `InertRecord`, which stores its arguments and its state. Only names from the packages that
write checkpoints are accepted, so a pickle that was made to attack other readers is refused by name.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import IO, Any

#: Packages whose names may occur in `.metadata` and in a saved tensor. They are not imported.
PACKAGES = ("torch", "olmo_core", "megatron", "collections", "pathlib")

#: Builtins that torch's metadata may name.
BUILTINS = ("set", "frozenset", "list", "dict", "tuple")


class InertRecord:
    """Instance of a class, or result of a function, that a pickle names.

    Args:
        args: positional arguments of the constructor or function.
    """

    #: Name of the class or function, without its module.
    of = ""
    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an item of a dictionary subclass; nothing here reads one."""

    def append(self, value: Any) -> None:
        """Ignore an item of a list subclass; nothing here reads one."""

    def field(self, name: str) -> Any:
        """Return a field of a dataclass instance; None if it has no such field."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python: the one in C grows its memo to any index that eight bytes name, up to 64 GB."""

    def __init__(self, stream: IO[bytes], persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(stream)
        self._persistent, self._classes = persistent, dict[tuple[str, str], type[InertRecord]]()

    def find_class(self, module: str, name: str) -> type[InertRecord]:
        package = module.partition(".")[0]
        if package not in PACKAGES and not (module in ("builtins", "__builtin__") and name in BUILTINS):
            raise pickle.UnpicklingError(f"the pickle names {module}.{name}")
        return self._classes.setdefault((module, name), type(name, (InertRecord,), {"of": name}))

    def persistent_load(self, key: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("the pickle refers to objects outside of it")
        return self._persistent(key)


def read(stream: IO[bytes], persistent: Callable[[Any], Any] | None = None) -> Any:
    """Return the object in a pickle, with an `InertRecord` for all but numbers, texts and plain containers.

    Args:
        persistent: returns the object for a persistent ID, such as a tensor's storage.

    Raises:
        ValueError: the pickle is broken, or names anything that is not of `PACKAGES` or `BUILTINS`.
    """
    try:
        return _Unpickler(stream, persistent).load()
    except (pickle.UnpicklingError, struct.error, EOFError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"the pickle cannot be read: {error or type(error).__name__}") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        raise ValueError(f"the pickle is too large or nested: {type(error).__name__}") from error
