"""Bits per byte of held-out text, and probes, during a run.

    heldout       chooses and tokenises the text once, when the run is prepared; no torch
    probe_plan    chooses and tokenises the items of probes, and how often they are scored; no torch
    validation    evaluates the text on all ranks, and has the probes scored where it is their turn
    probing       scores the probes on all ranks
    probe_curves  probes over the run: noise, and which may decide; no torch
    kept_looks    the last looks at probes, kept with each checkpoint; no torch
    seeds         the same probes in runs with another seed; no torch
"""
