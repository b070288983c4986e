"""Where documents come from: files of six formats, read once, in bounded memory.

    record      RawRecord and Reject: what every reader yields
    inventory   the files of a bucket by name and digest; how they are grouped into parts
    cuts        where large files are cut into pieces that are read by themselves
    licences    which licence a file carries where its source says `per-document`
    streams     plain bytes and lines out of gzip and Zstandard files, with damage named
    codings     HTTP bodies: chunks and compression undone, character sets by name
    warc        WARC, gzipped or not: one record per captured page
    jsonl       JSON lines: one record per line
    parquet     Parquet: one record per row
    fields      a record out of named fields, for the two above
    files       one record per file: HTML pages, plain text, source code
    base        Reader: what a format's module, or a package of another's, offers
    readers     the reader of each `kind`: those here, and those of installed packages

A reader's function is a generator `read(file, source, licence, max_bytes) -> RawRecord | Reject`. Damage is a counted
reject, never an exception; only a file that cannot be opened at all raises.

Does not belong here: turning bytes into text (`extract`, `normalize`) and writing parts (`documents`).
"""
