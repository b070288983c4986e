"""A whole installation on one machine, to try and to test: what `plinth up --full` starts next to the pages.

object_store  the S3 server's process: HTTPS, signed requests, access by role out of `infra/s3`, encryption by default
trial         PostgreSQL over TLS, Apache with TLS and a login; the environment by which commands find all of it

Everything ends and is deleted with the command: the S3 server keeps its objects in memory. Settings of lasting
installations are in `infra/`; the same files are used here.
"""
