"""Federated rounds: sites train on their own text and share weights only (DiLoCo, Douillard et al., arXiv:2311.08105).

    site ── weights after H inner steps, signed ──► exchange ──► coordinator: outer step of Nesterov
      ▲                                                                          │
      └──────── common weights of the next round, signed ◄──── exchange ◄────────┘

    exchange     the recipe section; the training hook; the folder or bucket between sites: signed records, their
                 tensors by digest, pruning
    coordinator  checks contributions, computes the next common weights, continues after a kill (imports torch)
    site         the rounds of one run: sends its weights, waits, adopts the common weights (imports torch)
    command      the command `plinth run federated`

A site is a separate run with its own shards, optimizer state and timeline. Does not belong here: inner steps (loop).
"""
