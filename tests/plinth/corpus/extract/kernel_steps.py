"""Steps of the kernel `main_content`: basic blocks that it runs, counted by the compiler, the same on every machine."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from plinth.corpus.extract.content.engine import NO_VOTES, BlockModel, conditions
from plinth.corpus.extract.content.risk import TRAITS
from plinth_text.compiled.build import prototypes, root

#: Bytes of text that a counted page may have.
ROOM = 1 << 24
COUNTER = """
#include <stdint.h>
int64_t steps;
void __sanitizer_cov_trace_pc(void) { steps++; }
"""
#: Searches and comparisons of the C library, which the compiler does not count, as loops.
LOOPS = """
#include <string.h>
static void *search(const void *at, int byte, size_t size) {
    for (const unsigned char *text = at; size; text++, size--)
        if (*text == (unsigned char)byte) return (void *)text;
    return NULL;
}
static int compare(const void *one, const void *other, size_t size) {
    const unsigned char *a = one, *b = other;
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) return a[i] - b[i];
    return 0;
}
#define memchr search
#define memcmp compare
"""


def counted_steps(folder: Path, model: BlockModel) -> Callable[[str], int]:
    """Compile the kernel in a folder, and return a function that counts its steps for a page."""
    file, made = root("plinth") / "corpus/extract/content/content.c", folder / "steps.so"
    exports = "".join(each.export() for each in prototypes(file, "steps"))
    (folder / "kernel.c").write_text(f'{LOOPS}#include "{file}"\n{exports}')
    (folder / "counter.c").write_text(COUNTER)
    flags = ["gcc", "-std=gnu11", "-O1", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-w"]
    include = [word for package in ("plinth", "plinth_text") for word in ("-I", str(root(package).parent))]
    for name, more in (("kernel", ["-fsanitize-coverage=trace-pc", *include]), ("counter", [])):
        subprocess.run([*flags, *more, "-c", f"{name}.c", "-o", f"{name}.o"], cwd=folder, check=True)
    subprocess.run([*flags, "-shared", "kernel.o", "counter.o", "-lm", "-o", made], cwd=folder, check=True)
    library = ctypes.CDLL(str(made))
    library.steps__main_content.restype = ctypes.c_int64
    counter, out = ctypes.c_int64.in_dll(library, "steps"), np.empty(ROOM, np.uint8)
    results = [ctypes.byref(kind()) for kind in (ctypes.c_int64, ctypes.c_int64, ctypes.c_double)]

    def steps(html: str) -> int:
        page, given = np.frombuffer(html.encode(), np.uint8), list[object]()
        for value in (page, *conditions(model), NO_VOTES, np.empty(len(TRAITS)), out):
            if isinstance(value, np.ndarray):
                given += [ctypes.c_void_p(value.ctypes.data), ctypes.c_int64(value.size)]
            else:
                given.append(ctypes.c_float(value))
        counter.value = 0
        assert library.steps__main_content(*given, *results, ctypes.byref(ctypes.c_int64())) >= 0
        return counter.value

    return steps
