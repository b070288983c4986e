"""Held-out slices while a run trains.

heldout     The held-out text that a run looks at while it trains: chosen and tokenised once, when the run is prep
parameters  Held-out slices while a run trains.
validation  Bits per byte of held-out slices while a run trains, on all its ranks.
"""
