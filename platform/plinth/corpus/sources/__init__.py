"""Where documents come from: files of eight formats, read once, in bounded memory.

    parameters  sources, buckets, terms; settings of the documents stage and of the illegal-content gate
    record      the record that describes a reader, and all readers by `kind`; their results: a raw record, or a
                reject with its reason; the account of both, which must add up
    inventory   the files of a bucket by name and digest; how large ones are cut into pieces, and pieces grouped into
                parts
    times       times and dates as archives, data sets and pages write them; opt-outs and licenses that pages and
                servers declare
    streams     plain bytes and lines out of compressed files, with damage named
    codings     HTTP bodies: codings undone, character sets of headers, media types by the first bytes; bytes as text,
                as a browser would
    media_types media types by the first bytes, where a declaration is missing or wrong
    warc        WARC and WET, compressed or not: one record per captured page
    fields      a record out of named fields, for the two above
    files       one record per file, per JSON line, or per row of Parquet; text that a model writes

A reader's function is a generator `read(file, source, licence, max_bytes) -> RawRecord | Reject`. Records that are not
documents become counted rejects, not exceptions: exclusions if they have another type, damage if they are broken
(`record`); only a file that cannot be opened raises an error.

Does not belong here: main content (`extract`), the normal form of text and parts (`documents`).
"""
