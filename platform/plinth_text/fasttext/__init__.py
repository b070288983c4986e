"""Inference with fastText models over Arrow buffers.

    model_file  a model file as flat arrays: dictionary, input rows, output rows, label tree
    predict     labels of whole documents, with the score of a chosen label, and of blocks of lines within them
"""
