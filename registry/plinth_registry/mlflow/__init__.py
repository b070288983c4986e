"""MLflow: its local server, the login of people, its model registry with and without the server.

    settings         how people log in, kept beside the keys: by password, or by a reverse proxy
    server           the local server: started when needed, found again, stopped; and its process
    login            inside that process, where it asks for a login: who is logged in, and what they decide
    artifact_places  the one place of artifacts, whatever the database says
    rest             registered models over the server's REST
    database         registered models and accounts in the SQLite databases, where no server runs
    connection       the one connection of this package's callers, with named failures; accounts of people

MLflow checks a login and keeps no author of a tag. So the server holds a key of its own, enrolled as `approver` and
named by the gate policy (`approvals.proxies`); it signs who set which tag. A tag that was written around it, in the
database or through a server without login, has no such statement and is a request.
"""
