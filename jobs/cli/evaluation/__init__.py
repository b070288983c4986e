"""Commands about what a checkpoint can do.

generate    `plinth generate`: text after prompts
evaluation  `plinth evaluation`: bits per byte by slice, the worst documents, the spans where two models differ
"""
