"""Train one model from a mixture, so that a stop at any moment costs only time.

    job ──► launch.local ──► supervise ──► one process per rank: __main__ ──► loop
     ▲                           │                                             │
     └────── events.jsonl ◄──────┴─────────────────────────────────────────────┘

    config      RunConfig: everything one run needs, resolved; `prepare` writes it
    directory   where the files of a run lie
    telemetry   events.jsonl, the one timeline: writer, reader, one value per step
    checkpoint  commit, verify, list, retain; files only
    job         submit or find, follow, the manifests of `run` and `checkpoint`
    supervise   start ranks, restart them within bounds, watch, forward signals
    failure     a rank's named error on its way to the user
    watch       the ranks of one attempt: hangs, dead siblings, signals
    schedule    learning rate as a function of tokens
    stopping    when a run has had enough: rules over signals, which `signals` gathers from the timeline
  with torch:
    model       the decoder, of attention, blocks, initialise and loss
    groups      which parameters learn at which rate and decay by how much
    stats       gradient norm and activations by layer
    export      Hugging Face layout: write and load
    data        batches from any step
    engine      DeepSpeed: build, step, norms, gather
    pieces      state as pieces of whole parameters, by name: the form that no layout owns
    universal   DeepSpeed's state as pieces, and back, on any layout
    snapshot    full state in and out of a checkpoint
    loop        the training loop
    audit       replay from an earlier checkpoint and compare: the evidence of resume

The first half imports no torch, so the control plane may import it.
Does not belong here: where a job runs (launch/), what a batch holds (tokens/).
"""
