"""A whole installation on one machine, to try and to test: what `plinth up --full` starts beside the pages.

certificates  an authority of its own, and certificates for `localhost`
database      PostgreSQL over TLS, with a role and a password for each of its databases
object_store  the S3 server's process: HTTPS, signed requests, a bucket encrypted by default
access        what each role may do in a bucket, out of `infra/s3`; how it is encrypted
proxy         Apache before the pages: TLS and a login
trial         all of them in one folder, and the environment by which every command finds them

Everything ends and is deleted with the command: the S3 server keeps its objects in memory. Settings of lasting
installations are in `infra/`; the same files are used here.
"""
