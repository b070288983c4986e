"""datatrove's side of `bench_pipeline`: FineWeb's filters over WARCs, in an environment of its own.

    PEER/bin/python tests/benchmarks/pipeline_peer.py CRAWL OUT LID.FTZ WORKERS

The blocks and their values are those of datatrove's `examples/fineweb.py` without its blocklist (no network): WARCs are
read, trafilatura extracts, one language is kept, Gopher's, C4's and FineWeb's filters judge, personal data is replaced,
and Parquet is written. It deduplicates nothing. The language model is a file of this machine: its own is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    crawl, out, model, workers = sys.argv[1:5]
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers import ParquetWriter

    language = LanguageFilter("en")
    language.model.MODEL_URL = model
    blocks = [
        WarcReader(crawl, glob_pattern="*.warc.gz"),
        # its second per page is for a quiet machine: here no page is lost to the clock
        Trafilatura(favour_precision=True, timeout=30),
        language,
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        PIIFormatter(),
        ParquetWriter(str(Path(out) / "kept")),
    ]
    files = len(list(Path(crawl).glob("*.warc.gz")))
    LocalPipelineExecutor(blocks, tasks=files, workers=int(workers), logging_dir=str(Path(out) / "logs")).run()


if __name__ == "__main__":
    main()
