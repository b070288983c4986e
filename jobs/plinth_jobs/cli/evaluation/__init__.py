"""Commands of evaluation that leave for the ring.

drift  `plinth model drift`: the champion on text that came after it; a proposal to go on training
"""
