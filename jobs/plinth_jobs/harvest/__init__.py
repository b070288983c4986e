"""The demo's input: text that is already on this machine, in the formats of real sources. Nothing is downloaded.

    run        `harvest(target, caps)`: all buckets, once; kept until a new harvest is requested
    summary    Caps, and what was harvested by bucket and licence
    output     write files only where they differ; choose among candidates by hash of their names
    packages   installed distributions, and the licence each declares as SPDX
    spdx       licence names of Python metadata and Debian to SPDX
    web        the standard library's documentation as HTML pages in WARC files
    pages      runs alone in a child process: renders the pages with pydoc
    code       Python source of the standard library and of the packages, a tree with `LICENCES.json`
    prose      long descriptions of the packages, JSON lines
    tasks      a set of tasks for lm-evaluation-harness
    manuals    the machine's manual pages in all its languages, rendered by groff, with `LICENCES.json`

Plain Python: no Dagster here.
"""

from plinth_jobs.harvest.run import harvest
from plinth_jobs.harvest.summary import BucketSummary, Caps, HarvestSummary

__all__ = ["BucketSummary", "Caps", "HarvestSummary", "harvest"]
