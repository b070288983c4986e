"""Federated rounds: sites train on their own text and share weights only (DiLoCo, Douillard et al., arXiv:2311.08105).

    site ── weights after H inner steps, signed ──► exchange ──► coordinator: outer step of Nesterov
      ▲                                                                          │
      └──────── common weights of the next round, signed ◄──── exchange ◄────────┘

    exchange     the recipe's section; the training hook; the folder or bucket between sites: signed
                 records, the tensors that they name by digest, what need not be kept
    coordinator  judges what sites sent, makes the next common weights, goes on where it was killed (imports torch)
    site         the rounds of one run: sends its weights, waits, adopts the common ones (imports torch)
    command      the command `plinth run federated`

A site is a run of its own: its shards, its optimizer's state and its timeline stay with it. Does not belong here: its
inner steps (loop).
"""
