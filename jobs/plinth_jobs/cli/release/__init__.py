"""Commands about releases and provenance.

keys     `plinth keys`: the root of trust, who signs as which role
key_identities  its `identity`: whose Sigstore bundles count
key_changes     what they share: the record of a change; `--propose`, `sign` and `publish`: a root of several holders
gates    `plinth gates`: the signed policy that a release must pass, and waivers
people   `plinth ops people`: the login of MLflow, and who may log in
release  `plinth approve`, `promote`, `rollback`: signed or recorded decisions
canary   `plinth release canary`: give a canary back
verify   `plinth verify`: every link from a target to its sources
taint    `plinth release taint`: marks of unfit data and models, and their lifting
incident `plinth ops incident`: incidents, which freeze promotions, and their facts
consumer `plinth release consumer`: services and models that use a release, and their feed
impact   `plinth release impact`: everything that came of something
log      `plinth release log`: decisions and refused ones, and their proof
content  `plinth export` and `plinth export restore`: files out of the content store
export_model  `plinth export model`: a release in Hugging Face's layout, signed
"""
