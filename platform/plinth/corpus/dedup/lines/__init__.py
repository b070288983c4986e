"""Lines and paragraphs that occur in several documents.

lines  Lines and paragraphs that other documents have too, as cuts; and boilerplate at heads and feet of pages.
units  What of a text's lines is compared with other documents: lines, paragraphs, lines at heads and feet.
"""
