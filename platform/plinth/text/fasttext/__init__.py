"""fastText inference over Arrow buffers.

    model_file  a model file as flat arrays: dictionary, input rows, output rows, label tree
    tokens      where tokens end, and their hashes
    rows        features of a token: its own row and those of its character n-grams
    scores      labels from a mean row: down the Huffman tree, or by softmax
    predict     labels of whole documents, and of blocks of lines within them
"""
