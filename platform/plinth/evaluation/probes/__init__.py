"""Probes: small sets of items whose answers are scored by likelihood, during training and after.

    base        items of probes; the record of a generated probe; the catalog; construction of items from prompts and
                answers, with choices by hash in place of a random generator
    knowledge   built-in: facts of general knowledge as cloze sentences; harmful requests and harmless ones like them
    code        built-in: names, brackets, calls and results of small programs
    maths       built-in: arithmetic, sequences, comparisons, word problems; copying and look-up over four distances
    languages   built-in: numbers, days, words and sentences in twenty-one languages
    probe_sets  the asset: items of every probe as parts, compared with training text; custom probes from JSONL
    scoring     bits per byte, margin, accuracy centered on chance and signal from likelihoods (pure)
    noise       noise of a probe between checkpoints; probes with more signal than noise may decide
    job         the asset: every probe on one checkpoint, as a part with statistics of probes and families (no torch)

Six families: general knowledge, code, math, long context, languages, safety boundary. Every score has a control, so an
answer that is merely likely does not count as ability. All text of the built-in probes was written for Plinth and is
under its license. Bump `base.VERSION` with any change of a built-in item.
"""
