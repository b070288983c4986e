"""Probes: small sets of items whose answers are scored by likelihood, in the training loop and after it.

    base        items of probes; the record that describes a probe made by code; the catalogue of all; items built
                from prompts and answers, with choices by hash in place of a random generator
    knowledge   built-in: facts of general knowledge as cloze sentences; harmful requests and harmless ones like them
    code        built-in: names, brackets, calls and results of small programs
    maths       built-in: arithmetic, sequences, comparisons, word problems; copying and look-up over four distances
    languages   built-in: numbers, days, words and sentences in twenty-one languages
    probe_sets  the asset: items of every probe as parts, compared with training text; a user's JSONL file as a probe
    scoring     bits per byte, margin, accuracy centred on chance and signal from likelihoods; noise of a probe, and
                which probes may decide (pure)
    job         the asset: every probe under one checkpoint, as a part with statistics of probes and families (no
                torch)

Six families: general knowledge, code, maths, long context, languages, safety boundary. Every score has a control, so
that the mere likelihood of an answer is not read as ability. All text of the built-in probes was written for Plinth and
is under its license. Bump `base.VERSION` with any change of a built-in item.
"""
