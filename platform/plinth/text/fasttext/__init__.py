"""fastText inference over Arrow buffers.

    mapped_file  fields, arrays and the dictionary out of a mapped file
    model_file   a model file as flat arrays: dictionary, input rows, output rows, label tree
    tokens       where tokens end, and their hashes
    rows         features of a token: its own row and those of its character n-grams
    scores       labels from a mean row: down the Huffman tree, by softmax, or each for itself
    predict      labels of whole documents, and of blocks of lines within them
    documents    labels of whole documents by any model, with word n-grams, and the score of a chosen label
"""
