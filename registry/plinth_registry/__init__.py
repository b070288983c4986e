"""From checkpoint to release: sign, register, gate, approve, promote, taint. No other package uses MLflow.

checkpoint -> candidate -> gates -> approval -> canary -> champion
                  ^                                 |
                  +--------- taint, rollback -------+

Called from outside (assets, sensors, command line):

    api           for assets and sensors: register, relay timelines, promote ready candidates, watch the canary
    decisions     for commands: current candidates; approve, waive, promote, roll back, repair
    verified      verify_model: verify a model down to its sources before loading it
    mlflow.server ensure_server, find_server, stop_server: the local MLflow server

Inside the package, each module can import the modules above it (keys and envelopes are in plinth.trust):

    audit_log     signed logs of a workspace and their signing roles (see plinth.trust.signed_log); the audit log of
                  decisions and refusals, signed by the actor
    releases      records of every release change, with person and reason, and their signed head; current champion,
                  canary and withdrawn versions
    signing       OpenSSF model signature and SLSA provenance of a directory; the directory of a checkpoint
    trained       the trainer's statements during training, bound to a checkpoint
    attestations  statements about a checkpoint, each signed by the responsible role; facts from measurements
    candidate     a checkpoint with its evaluation, signed facts and verified lineage
    gates/        pure functions from policy and evidence to state and reason
    policy        the signed gate policy of a release: a log whose newest version is in force
    taint         signed taints and their lifting; everything downstream of a taint
    approval      decisions of people: signed statements, or tags set in the MLflow UI after login
    mlflow/       MLflow's server, its login, its model registry, the connection to it
    consumers     services that use a release, and models derived from a release, with owners; impact: manifests, runs,
                  versions and consumers derived from an artifact
    impact_page   page of an impact, with a graph
    evidence      evidence for the gates, with figures recomputed from their tables
    papers        documents about a model, written by other packages; the model card
    registration  experiment, run, metrics and version in MLflow, each created once; their descriptions
    run_metrics   metrics in MLflow: a run's timeline, each event once; scores of a model with their data
    judgement     evaluation of a candidate's gates; its signed verdict; waivers of one gate for one candidate until a
                  date
    incidents     open, note, close; promotions are frozen while an incident is open
    promotion     promotion, rollback, withdrawal of a canary; MLflow's aliases
    canary/       paired observations of canary and champion -> withdraw, continue, promote
    freeze        signed feed for consumers, sent by webhook; taint or lift a taint, and notify consumers
    exports/      a release or checkpoint as a signed directory that can be verified elsewhere

Trust depends only on signatures and content digests. People read tags in MLflow, and may write tags for approvals;
only a record signed by the promoter makes a version a release.
"""
