"""The command line: `plinth COMMAND`, or `plinth NOUN COMMAND`. A module holds a command or a few.

    root      `plinth` itself; errors as messages with exit codes
    nouns     the table of commands, and those that installed packages add
    options   --workspace, --recipe, --json, and the settings that they fill
    output    tables for people, JSON for programs

    doctor      `doctor`, one function per check
    run         `recipe`, `run`, `up`, `down`
    status      `status`, `report`, `report pages`
    corpus      `corpus funnel | card | ledger | near | limits | arpa`
    policies    `corpus policy | slices`: what policies and learned gates remove
    sample      `corpus sample | review | label`: removed documents, judged by people
    tokens      `tokens tokenizer | mixture | packing`
    runs        `run job | timeline | goodput | profile | audit`: a training run
    steps       `run batch | replay | blame | checkpoint`: its steps
    model       `model evaluation | probes | compare`: measured quality
    generate    `model generate`; a model by any of its names, ready for the evaluation engine
    provenance  `explain`, `verify`: where a document, a model or an asset comes from
    release     `approve`, `release promote | rollback | mirror | canary | log`: decisions
    taint       `release taint | impact | consumer`: unfit data, what derives from something, who uses a release
    export      `export pointers | restore | tokens | model`
    gates       `gates`: the signed policy that a release must pass, and waivers
    keys        `keys`: the root of trust, who signs as which role
    people      `ops people`: the login of MLflow, and who may log in

Importing this package imports click and nothing else; a command imports heavy packages inside its function. Its help
ends with an example, and it takes `--json` where it reads.
"""

from plinth_jobs.cli.root import main

__all__ = ["main"]
