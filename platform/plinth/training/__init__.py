"""Train one model from a mixture, so that a stop at any moment costs only time.

    job ──► launch.local ──► supervise ──► one process per rank: __main__ ──► loop
     ▲                           │                                             │
     └────── events.jsonl ◄──────┴─────────────────────────────────────────────┘

    config      RunConfig: everything one run needs, resolved; `prepare` writes it
    directory   where the files of a run lie
    telemetry   events.jsonl, the one timeline: writer, reader, one value per step
    checkpoint  commit, verify, list; files only. `retention` deletes, `upload` copies to a bucket
    part        one rank's share of a checkpoint, which `writer`, a process, writes while cores are `idle`
    job         submit or find, follow, the manifests of `run` and `checkpoint`
    supervise   start ranks, restart them within bounds, watch, forward signals
    nodes       how several nodes agree: node 0 is `leader`, the others are each a `follower`
    failure     a rank's named error on its way to the user
    watch       the ranks of one attempt: hangs, dead siblings, signals
    schedule    learning rate as a function of tokens
    stopping    when a run has had enough: rules over signals, which `signals` gathers from the timeline
    guard/      spikes and explosions: what is seen, judged, done about it
    choice      which checkpoint to go on from
    sightings   the documents of a step, with their source
    blame       from losses to names: documents, sources and buckets by excess
    offline     an audit that a person asks for
  with torch:
    model       the decoder, of attention, blocks, initialise and loss
    groups      which parameters learn at which rate and decay by how much
    stats       gradient norm and activations by layer
    export      Hugging Face layout: write and load; export_folder: a checkpoint for other programs, by blocks
    data        batches from any step, as they are stored
    widen       stored rows to what the model takes, on the device
    ranks       join the process group, seed, leave
    engine      DeepSpeed: build, step, norms, gather
    pieces      state as pieces of whole parameters, by name: the form that no layout owns
    universal   DeepSpeed's state as pieces, and back, on any layout
    snapshot    full state in and out of a checkpoint
    saving      checkpoints while it trains: `staging` copies the state, `writing` talks to the writer
    trainer     the steps of one rank: what a run, an audit and a replay do alike
    loop        the training loop: a trainer with timeline, checkpoints, guard
    endings     errors that end a run
    audit       replay from an earlier checkpoint and compare: the evidence of resume
    losses      a past step's batch, scored token by token under a checkpoint
    forensics   replay and blame, offline

The first half imports no torch, so the control plane may import it.
Does not belong here: where a job runs (launch/), what a batch holds (tokens/).
"""
