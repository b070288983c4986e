"""The ring: questions put to small runs: experiments, scaling ladders, the search for a mixture, the value of a source,
plans. Found through entry points; nothing of the core imports it.
"""
