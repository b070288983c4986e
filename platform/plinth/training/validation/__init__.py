"""Bits per byte of held-out text during a run.

    heldout     chooses and tokenises the text once, when the run is prepared; no torch
    validation  evaluates it on all ranks
    parameters  how often, and how much text
"""
