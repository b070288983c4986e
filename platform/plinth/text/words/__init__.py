"""Words, their hashes and n-grams.

    bags             Bags of words as short vectors of whole numbers: TF-IDF, hashed.
    chunks           Eight bytes at a time: read, compare and hash runs of bytes in a buffer.
    hash_lookup      Find 64-bit hashes in a large sorted array: a bit filter in front of a binary search.
    hash_sets        Sets of 64-bit hashes for kernels: open addressing in a table that many texts share.
    ngrams           Word n-gram hashes of Arrow `large_string` columns; words as in `word_hashes`.
    repeated_ngrams  Repeated word n-grams of one text, from one length to the next: only what repeats can repeat when
    sentences        Texts as sentences of tokens, for language models: a line is a sentence, a word or a mark is a to
    split            Where the words and line ends of a text lie: what several kernels start from.
    word_blocks      Hashes of ASCII words, many bytes and many words at once: what `word_hashes` does byte by byte, i
    word_hashes      Words of a text and their hashes, in one pass over the bytes.
"""
