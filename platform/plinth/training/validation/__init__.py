"""Evaluation during a run: bits per byte of held-out text, and scores of probes.

    heldout       selection and tokenization of the text, once per run; no torch
    probe_plan    selection of probe items, and the scoring interval; no torch
    validation    evaluation of the text, and scoring of probes, on all ranks
    probe_curves  probe scores over the run: their noise, probes that may end a run, scores stored with checkpoints, and
                  scores of the same probes in runs with another seed; no torch
"""
