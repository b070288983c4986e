"""Input of the demo: text that is already on this machine, in the formats of real sources. Nothing is downloaded.

    run        `harvest(target, caps)`: write all buckets and a set of tasks once, and keep them until a new harvest is
               requested. Writes the standard library's documentation as HTML pages in WARC files, and the machine's
               manual pages in all its languages, rendered by groff, with `LICENCES.json`
    output     size limits and summary; write only files that differ; choose among candidates by the hash of their names
    packages   installed packages with their licenses, as SPDX; Python source (a tree), long descriptions (JSON lines)
    pages      a script in a separate process, which renders the pages with pydoc

The package is plain Python and does not import Dagster.
"""
