"""MLflow behind a login, so that a tag can count as the decision of a person.

    settings   how people log in, kept beside the keys: by password, or by a reverse proxy that has asked an identity
               provider
    server     inside the server's process: who is logged in, and what they write to the tags of approvals
    log        what they wrote, signed by the server: who set which tag of which candidate to what
    account_database  rows of accounts in MLflow's database, written where no server runs
    accounts   people who may log in, and the account of Plinth itself

MLflow checks a login and keeps no author of a tag. So the server holds a key of its own, enrolled as `approver` and
named by the gate policy (`approvals.proxies`); it signs who set which tag. A tag that was written around it, in the
database or through a server without login, has no such statement and is a request.
"""
