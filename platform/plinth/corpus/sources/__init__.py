"""Sources of documents: files in several formats, read once and in bounded memory.

    parameters  sources, buckets, terms; settings of the documents stage and of the illegal-content gate
    record      the class `Reader`, and all readers by `kind`; what readers yield: raw records, and rejects with their
                reason; the account of all files and records, which must add up
    inventory   the files of a bucket by name and digest; pieces of large files; groups of pieces, one per part
    times       parsing of times and dates as archives, data sets and pages write them; opt-outs and licenses that pages
                and servers declare
    streams     plain bytes and lines from compressed files; damage becomes a reject with a reason
    codings     HTTP bodies: decoding of codings, character sets of headers, media types by the first bytes if the
                declaration is missing or wrong; conversion of bytes to text as in browsers
    warc        WARC and WET, compressed or not: one record per captured page
    fields      records from named fields, for JSON lines and Parquet
    files       one record per file, per JSON line, or per row of Parquet; generated text

A reader's function is a generator `read(file, source, licence, max_bytes) -> RawRecord | Reject`. Records that are not
documents become counted rejects. A record of a different type counts as an exclusion, a broken record as damage
(`record`). Only a file that cannot be opened raises an error.

Not here: main content (`extract`), and the normal form of text and parts (`documents`).
"""
