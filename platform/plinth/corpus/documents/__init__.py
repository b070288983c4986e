"""Sources to documents: read, extract, normalise, identify, write.

documents   the stage: records to parts of documents; exclusions and damage become counted rejects
account     files and records of a bucket, which must add up
bounds      how much is damaged, and the bound that fails the stage
normalize   one normal form of text: line ends, mojibake, invisible and control characters, NFC
boundaries  words, sentences and paragraphs that line ends and page ends cut or glued
drop_rows   a part without some of its rows, which become rejects
repeats     the same document in two parts of a bucket: the first stays
tables      rows to record batches in bounded memory, with counts
"""
