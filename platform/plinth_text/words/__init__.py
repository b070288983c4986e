"""Words, their hashes and n-grams.

word_hashes      words of a text and their hashes, in one pass (word_blocks: many ASCII words at once)
ngrams           word n-grams as 64-bit hashes; Jaccard similarity
split            positions of words and line ends
script_words     the words of a text in any script (boundary_models: BudouX's, for scripts without spaces)
sentences        texts as sentences of tokens, for language models
bags             TF-IDF vectors, hashed
repeated_ngrams  repeated n-grams of one text, length by length
chunks           read, compare and hash eight bytes at a time
hash_sets        sets of hashes in a table that many texts share
hash_lookup      find hashes in a large sorted array
"""
