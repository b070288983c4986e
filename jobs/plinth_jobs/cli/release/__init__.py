"""Commands about releases and provenance.

release  `plinth approve`, `promote`, `rollback`: signed or recorded decisions
canary   `plinth release canary`: give a canary back
incident `plinth ops incident`: incidents, which freeze promotions, and their facts
consumer `plinth release consumer`: services and models that use a release, and their feed
log      `plinth release log`: decisions and refused ones, and their proof
"""
