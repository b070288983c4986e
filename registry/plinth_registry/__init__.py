"""From checkpoint to release: sign, register, gate, approve, promote, taint. The one package that knows MLflow.

checkpoint -> candidate -> gates -> approval -> canary -> champion
                  ^                                 |
                  +--------- taint, rollback -------+

Called from outside (assets, sensor, command line):

    api           register_candidate, pending, ready, approve, promote, promote_if_approved, promote_if_proved,
                  watch_canary, canary_status, return_canary, rollback, mark_tainted, lift_taint, relay_timeline,
                  history, prove_log
    verified      verify_model: prove a model down to its sources; the way to load one
    server        ensure_server, find_server, stop_server: the local MLflow server (its process: mlflow_process)
    login/        MLflow behind a login, so that a tag can count as a person's decision

Inside, each may use those above it (keys and envelopes are plinth.trust):

    signed_file   a YAML file that somebody signs, read with its problems
    signed_log    the signed logs of a workspace and who may sign each (the mechanism: plinth.trust.signed_log)
    audit_log     every decision and every refused one, signed by whoever decided or asked
    signing       OpenSSF model signature and SLSA provenance of a directory
    trained       what the trainer stated while it trained, bound to a checkpoint
    materialise   checkpoint manifest -> signed directory
    artifact_places  the one place of MLflow's artifacts, whatever its database says
    mlflow_client connection to MLflow, named failures, source URIs
    model_registry  MLflow's registered models over REST
    model_database  MLflow's registered models in its database, where no server runs
    candidate     a checkpoint with its evaluation and signed facts; its lineage, proved
    attestations  statements about a checkpoint, each signed by the role that may state it
    gates/        pure functions: policy and evidence -> state, reason
    policy        the signed policy that governs a release: a log, the newest version holds
    waivers       the owner lets one candidate pass one gate until a date
    verdict       what the gates said, as a signed verification summary
    measured      statistics of manifests -> facts that gates read
    recount/      figures that gates read, counted again from their tables
    evidence      gather the evidence that the gates read
    registration  experiment, run, metrics and version in MLflow, each made once
    version_text  marks, gates and scores where MLflow shows them first
    scores        what tasks and proxies measured, as metrics of the model with their data
    timeline      step events of a run -> metrics, each once
    releases      records of every movement, with person and reason, and their signed head
    history       those records as a value: which version is champion, on trial or gone
    taint         marks and their lifting, signed; everything downstream of them
    approval      decisions of people: signed statements, or tags set in the MLflow UI behind its login
    page_links    links from MLflow to the pages of the workspace
    mirror        MLflow's aliases after them, repaired and reported
    released      versions of a release, proved from the signed history
    judgement     a candidate and its gates, judged now; its verdict
    promotion     copy, record, rollback, return of a canary
    review        candidates before they are released: judged, approved, waived, ready
    canary/       what is observed of a canary beside the champion -> return, go on, promote
    incidents     opened, noted, closed; while one is open, nothing is promoted
    consumers     services that use a release and models made of one, with who answers for each
    impact        everything that came of something: manifests, runs, versions, consumers
    feed          what consumers must learn, signed and numbered; webhook sends it
    freeze        mark or lift, and name everybody who is concerned
    exports/      a release or checkpoint as a signed directory that proves itself elsewhere

Trust rests on signatures and content digests only. Tags in MLflow are for people to read and, for
approvals, to write; the version of a release counts when a record signed by the promoter says so.
"""
