"""Even-sized binary shards with a document index.

    axes               The stream of every curated document: values of the axes, joined from sidecars that lie beside
    cut                Cut token streams into shards and index them: byte ranges of one stream, or documents gathered
    export             Shards for other trainers: Megatron's indexed dataset, plain token files, or the shards by name
    index              The document index of a stream: where every document lies, any of them found in microseconds at
    lookup             Find documents in a part of an index by a few small reads of the file, at any size.
    mapped             Arrow files of one record batch that are read where they lie: any row of any column in constant
    parameters         Token shards.
    part_tokens        The tokens of curated parts on their way into shards: made once, and brought back when more sha
    shards             Each bucket's token streams in even binary shards, with a document index.
    staged             Tokens of curated parts on their way into shards: kept in staging, and no longer than the shard
    stream_assignment  Which documents of which curated parts each stream of a bucket takes: all, or those of its labe
    streams            Streams of a shard set: a bucket's documents by the values of the recipe's axes.
"""
