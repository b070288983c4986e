"""Words and sentences of one text, by the kernels that count them in a column of texts."""

import numpy as np

from plinth_text.english import edge_buffer, sentences, split, splitter


def words(text: str) -> list[str]:
    """The words of one text."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    edges = edge_buffer(data.size)
    count = split(data, 0, data.size, *splitter(data.size).arguments(), edges)  # type: ignore[call-arg]
    return [bytes(data[edges[2 * i] : edges[2 * i + 1]]).decode() for i in range(count)]


def sentence_count(text: str) -> int:
    """The number of sentences in one text."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    return sentences(data, 0, data.size, *splitter(data.size).arguments(), edge_buffer(data.size))  # type: ignore[call-arg]
