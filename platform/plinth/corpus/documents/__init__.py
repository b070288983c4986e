"""Sources to documents: read, extract, normalise, identify, write.

documents   the stage: records to parts of documents; exclusions and damage become counted rejects
normalize   one normal form of text: line ends, mojibake, invisible and control characters, NFC
tables      rows to record batches
removal     parts without documents that an exclusion takes, or that an earlier part holds already
"""
