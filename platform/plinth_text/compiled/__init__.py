"""Kernels: functions over arrays in C, compiled by the machine's C compiler.

    @compiled
    def count_words(data: U8, start: int, end: int) -> int:
        \"\"\"Return the number of words.\"\"\"

This code declares the kernel `count_words`, which a C file in the module's folder defines. The kernels of a folder must
have different names. The C parameters have the same names in the same order (`build.py` lists their types). Pointers to
results come last; the Python function returns the C function's own result, followed by these results. Arrays must be
C-contiguous and have the exact element type, because a kernel checks no bounds. Kernels run without the GIL.

    kernel.h    views of arrays, and definitions for all kernel files
    build.py    reads prototypes, and compiles once per machine and version; `python -m plinth_text.compiled PACKAGE`
                compiles ahead of the first use

Any package may have kernels. The C files of a package become one library, and may include headers of `plinth_text`
(`#include "plinth_text/unicode/codepoints.h"`) and of the package.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar

from plinth_text.compiled.build import ELEMENTS, Parameter, Prototype, library, prototypes

F = TypeVar("F", bound=Callable[..., Any])
_NO_MEMORY = -(2**63)


def compiled(function: F) -> F:
    """Return the kernel that a function without a body declares. It is compiled at its first call, if needed."""
    bound: list[Callable[..., Any]] = []

    def kernel(*arguments: Any) -> Any:
        if not bound:
            bound.append(_bind(function))
        return bound[0](*arguments)

    return update_wrapper(kernel, function)  # type: ignore[return-value]


@lru_cache(maxsize=8)
def _library(package: str) -> tuple[Any, Any]:
    """Return the cffi interface and the loaded library of a package."""
    shared, declared = library(package)
    spec = importlib.util.spec_from_file_location(declared.stem, declared)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi, module.ffi.dlopen(str(shared))


@lru_cache(maxsize=256)
def _kernels(folder: Path, package: str) -> dict[str, Prototype]:
    return {each.name: each for file in folder.glob("*.c") for each in prototypes(file, package)}


def _bind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Python function that checks arrays, calls the kernel and collects its results.

    Raises:
        TypeError: no C file in the folder has the kernel, or the kernel has other parameters.
    """
    source, module = Path(function.__code__.co_filename), function.__module__
    package = module if source.stem == "__init__" else module.rpartition(".")[0]
    prototype = _kernels(source.parent, package).get(function.__name__)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = [] if prototype is None else [each for each in prototype.parameters if not each.result]
    if prototype is None or tuple(each.name for each in given) != names:
        raise TypeError(
            f"{module}.{function.__name__}({', '.join(names)}): the C files next to it have "
            f"{prototype.declaration() if prototype else 'no such kernel'}"
        )
    import numpy as np  # not before a kernel is called: commands that start workers need none

    ffi, loaded = _library(module.partition(".")[0])
    results = [each for each in prototype.parameters if each.result]
    scope: dict[str, Any] = {
        "_call": getattr(loaded, prototype.symbol), "_buffer": ffi.from_buffer, "_new": ffi.new, "_wrong": _wrong,
        **{f"_{element}": np.dtype(kind) for element, (_, kind) in ELEMENTS.items()},
        **{f"_t_{each.name}": ffi.typeof(f"{ELEMENTS[each.element][0]}[]") for each in given if each.element},
        **{f"_r_{each.name}": ffi.typeof(f"{each.scalar}[1]") for each in results},
    }  # fmt: skip
    exec(_source(prototype, given, results), scope)
    made: Callable[..., Any] = scope[function.__name__]
    return made


def _source(prototype: Prototype, given: list[Parameter], results: list[Parameter]) -> str:
    """Return the Python source of the wrapper of a kernel."""
    lines = [f"def {prototype.name}({', '.join(each.name for each in given)}):"]
    for each in given:
        if each.element:
            n = each.name
            lines.append(f"    if {n}.dtype != _{each.element} or {n}.ndim != {len(each.lengths)}:")
            lines.append(f"        _wrong({prototype.name!r}, {n!r}, {n}, {each.element!r}, {len(each.lengths)})")
            lines += [f"    {n}_rows, {n}_columns = {n}.shape"] if each.rows else []
    lines += [f"    _o_{each.name} = _new(_r_{each.name})" for each in results]
    call = f"_call({', '.join(word for each in prototype.parameters for word in _words(each))})"
    lines.append(f"    result = {call}")
    if prototype.returns == "int64_t":
        lines += [f"    if result == {_NO_MEMORY}:", f"        raise MemoryError({prototype.name!r})"]
    returned = ["result"] * (prototype.returns != "void") + [f"_o_{each.name}[0]" for each in results]
    return "\n".join([*lines, f"    return {', '.join(returned) or 'None'}"])


def _words(each: Parameter) -> list[str]:
    """Return the arguments that the wrapper passes to the exported function for one parameter of the kernel."""
    if each.result:
        return [f"_o_{each.name}"]
    if not each.element:
        return [each.name]
    buffer = f"_buffer(_t_{each.name}, {each.name}, {each.written})"
    return [buffer, *([f"{each.name}_rows", f"{each.name}_columns"] if each.rows else [f"{each.name}.size"])]


def _wrong(kernel: str, name: str, array: Any, element: str, dimensions: int) -> None:
    raise TypeError(
        f"{kernel}: {name} is {array.dtype} with {array.ndim} dimensions: expected {ELEMENTS[element][0]} with "
        f"{dimensions}"
    )


__all__ = ["compiled"]
