"""Differentially private training (DP-SGD, Abadi et al., arXiv:1607.00133): epsilon of a run's weights.

    secret ─► which sequences a step takes (tokens.order.poisson) ─► gradient of each, clipped ─► sum ─► noise ─► update
       └──────────────────────────────────────────────────────────────────────────────────────────────┘

    hook         checks, noise, key and sampling of a run, as a training hook
    accounting   epsilon of so many steps, and the noise for an epsilon, by Opacus; a process of its own (imports torch)
    gradients    the sum of clipped gradients with noise (imports torch)

The unit of privacy is a sequence of the shards. Does not belong here: what a gradient is used for (engine).
"""
