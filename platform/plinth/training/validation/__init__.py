"""Bits per byte of held-out text, and probes, during a run.

    heldout       chooses and tokenises the text once, when the run is prepared; no torch
    probe_plan    chooses and tokenises the items of probes, and how often they are scored; no torch
    validation    evaluates the text on all ranks, and scores the probes where it is their turn
    probe_curves  probes over the run: noise, and which may decide; the last looks, kept with each checkpoint; the same
                  probes in runs with another seed; no torch
"""
