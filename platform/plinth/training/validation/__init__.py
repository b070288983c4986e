"""Bits per byte of held-out text, and probes, during a run.

    heldout       selection and tokenization of the text, once per run; no torch
    probe_plan    selection of probe items, and the scoring interval; no torch
    validation    evaluation of the text, and scoring of probes, on all ranks
    probe_curves  probe scores over the run: noise, and which probes may decide; scores kept with checkpoints; the same
                  probes in runs with another seed; no torch
"""
