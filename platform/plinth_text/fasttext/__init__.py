"""fastText inference over Arrow buffers.

    mapped_file  fields, arrays and the dictionary out of a mapped file
    model_file   a model file as flat arrays: dictionary, input rows, output rows, label tree
    tokens       flags of code points (C: where tokens end, and their hashes)
    rows         the input side for kernels (C: a token's own row and those of its character n-grams)
    scores       the output side for kernels (C: labels from a mean row by tree, softmax or logistic function)
    predict      labels of whole documents, and of blocks of lines within them
    documents    labels of whole documents by any model, with word n-grams, and the score of a chosen label
"""
