"""Lines and paragraphs that occur in several documents.

units  lines, paragraphs, and lines at heads and feet, with their keys
lines  the stage: repeated units and boilerplate, as cuts
"""
