"""Where documents come from: files of eight formats, read once, in bounded memory.

    parameters  sources, buckets, terms; settings of the documents stage
    record      the record that describes a reader; its results: a raw record, or a reject with its reason
    inventory   the files of a bucket by name and digest; how they are grouped into parts
    cuts        where large files are cut into pieces that are read separately
    times       times and dates as archives, data sets and pages write them
    streams     plain bytes and lines out of compressed files, with damage named
    codings     HTTP bodies as archives keep them: codings undone, character sets of headers, media types by the first
                bytes
    charsets    bytes as text, in the character set that a browser would find
    signals     opt-outs and licences that pages and servers declare
    media_types media types by the first bytes, where a declaration is missing or wrong
    readers     the reader of each `kind`: those here, and those of installed packages
    warc        WARC and WET, compressed or not: one record per captured page
    jsonl       JSON lines: one record per line
    parquet     Parquet: one record per row
    fields      a record out of named fields, for the two above
    sampled     text that a model writes, read as JSON lines
    files       one record per file: HTML pages, PDF, LaTeX, plain text, source code

A reader's function is a generator `read(file, source, licence, max_bytes) -> RawRecord | Reject`. What is no document
is a counted reject, never an exception: an exclusion where a source simply is not that, damage where it is broken
(`record`); only a file that cannot be opened at all raises.

Does not belong here: main content (`extract`), the normal form of text and parts (`documents`).
"""
