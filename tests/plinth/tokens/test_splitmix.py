from __future__ import annotations

import numpy as np

from plinth.tokens.tokenizer.sample import mix64


def test_mix64_agrees_with_splitmix64() -> None:
    # First outputs of SplitMix64 seeded with 0: the finalizer of multiples of its increment.
    state = np.arange(1, 3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix64(state).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
