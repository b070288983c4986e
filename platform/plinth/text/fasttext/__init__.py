"""fastText inference over Arrow buffers.

    model_file  Read a fastText model file into flat arrays: dictionary, input rows, output rows, label tree.
    predict     fastText prediction over Arrow string buffers: for whole documents, and for blocks of lines within the
    rows        What fastText makes of a token: its own row if it is known, and the rows of its character n-grams.
    scores      Labels from a mean row: down fastText's Huffman tree, or by softmax over all labels.
    tokens      Where fastText's tokens end: eight bytes at a time, with what is counted on the way.
"""
