"""From checkpoint to release: sign, register, gate, approve, promote, taint. The one package that knows MLflow.

checkpoint -> candidate -> gates -> approval -> canary -> champion
                  ^                                 |
                  +--------- taint, rollback -------+

Called from outside (assets, sensors, command line):

    api           what assets and sensors call: register, relay a timeline, promote what is ready, watch the canary
    decisions     what commands call: candidates as they are now; approve, waive, promote, roll back, repair
    verified      verify_model: prove a model down to its sources; the way to load one
    mlflow.server ensure_server, find_server, stop_server: the local MLflow server

Inside, each may use those above it (keys and envelopes are plinth.trust):

    audit_log     the signed logs of a workspace and who may sign each (the mechanism: plinth.trust.signed_log); every
                  decision and every refused one, signed by whoever decided or asked
    releases      records of every movement, with person and reason, and their signed head; as a value: which version
                  is champion, on trial or gone
    signing       OpenSSF model signature and SLSA provenance of a directory; the directory of a checkpoint
    trained       what the trainer stated while it trained, bound to a checkpoint
    attestations  statements about a checkpoint, each signed by the role that may state it; measurements as facts
    candidate     a checkpoint with its evaluation and signed facts; its lineage, proved
    gates/        pure functions: policy and evidence -> state, reason
    policy        the signed policy that governs a release: a log, the newest version holds
    taint         marks and their lifting, signed; everything downstream of them
    approval      decisions of people: signed statements, or tags set in the MLflow UI behind its login
    mlflow/       MLflow's server, its login, its model registry, the connection to it
    consumers     services that use a release and models derived from one, with who answers for each; impact: everything
                  derived from something: manifests, runs, versions, consumers
    evidence      gather the evidence that the gates read; its figures, counted again from their tables
    registration  experiment, run, metrics and version in MLflow, each made once; what MLflow shows of them
    run_metrics   metrics in MLflow: a run's timeline, each event once; scores of a model with their data
    judgement     a candidate and its gates, judged now; its signed verdict; waivers: the owner lets one candidate pass
                  one gate until a date
    incidents     opened, noted, closed; while one is open, nothing is promoted
    promotion     copy, record, rollback, return of a canary; MLflow's aliases after them
    canary/       what is observed of a canary beside the champion -> return, go on, promote
    freeze        what consumers must learn, signed and numbered, sent by webhook; taint or lift, and notify everyone
                  concerned
    exports/      a release or checkpoint as a signed directory that proves itself elsewhere

Trust rests on signatures and content digests only. Tags in MLflow are for people to read and, for
approvals, to write; the version of a release counts when a record signed by the promoter says so.
"""
