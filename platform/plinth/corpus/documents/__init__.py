"""Sources to documents: read, extract, normalise, identify, write.

boundaries  Boundaries that line ends and page ends have put in the wrong place, mended where the text itself show
documents   Sources to documents: read, extract, normalise, identify, write; what fails becomes a counted reject.
normalize   One way to write every text: line ends, mojibake, invisible and control characters, NFC, trailing spac
repeats     The same document in two parts of a bucket: the first stays, the others become rejects.
tables      Rows to record batches, in bounded memory, with the counts that manifests carry.
"""
