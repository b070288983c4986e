"""Main content of HTML by Plinth's own engine: blocks of text, and a small model that tells content from the rest.

    tags.h, hints.h    names of elements; words in classes and texts that tell content from boilerplate
    page.h             a page as blocks in a tree of elements, read in one pass
    features.h         features of each block: its text, the elements above, its neighbors, its place in the page
    scores.h           scores of blocks by decision trees
    doubt.h            the F1 that the model expects of a text, its unsure share, and teasers of other pages
    rules.h            rules of form: `keep.h` for what belongs to kept text, `drop.h` for what is around an article
    risk.h, risk       traits of a text, and the chance that it is not the main content, by the weights in `risk.json`
    content.c          the text that is kept, with lists, tables and code as readers see them
    engine             the kernels, the model's file, and the engine `blocks`
    learner            labels of blocks by a text, and decision trees by LightGBM
    lessons            what is learned from a page and the text of a slow engine; measurement of a learned model
    model.npz          the default model: learned from WCXB, a data set by Murrough Foley under CC BY 4.0, by
                       `tests/benchmarks/learn_blocks.py`
"""
