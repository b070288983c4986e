"""Published filter rules as named, versioned profiles: `policies: {default: {profiles: [gopher/datatrove, c4/dclm]}}`.

    base        the record that describes a profile
    gopher      Gopher's rules as datatrove, Dolma and RedPajama-v2 count them
    c4          C4's line and page rules: the paper's, datatrove's, FineWeb's, DCLM's, Dolma's
    web         FineWeb's rules, RefinedWeb's line rules, RedPajama-v2's signals, Dolma's repetitions, source code
    registry    all profiles by name

"Gopher" is not one definition: projects count words, copies and stop words differently. A profile's name is
`family/project`; tests/agreement runs it beside that project. A profile is data: expressions over the columns of
annotators. Does not belong here: counting (annotators), judging (the policy stage).
"""

from plinth.corpus.policy.profiles.base import Profile
from plinth.corpus.policy.profiles.registry import PROFILES, profile, resolved

__all__ = ["PROFILES", "Profile", "profile", "resolved"]
