"""Text that entered before a list grew is located, with its current users."""

from typing import Any

from plinth.corpus import lists
from plinth.corpus.sources.parameters import Matching
from plinth.records import Manifest
from plinth_audit.quarantine.search import find


def listed(ctx: Any, words: str) -> Manifest:
    (ctx.workspace.input / "stop").mkdir(exist_ok=True)
    (ctx.workspace.input / "stop" / "keywords.txt").write_text(words)
    return lists.run(ctx, "stop", "stop")


def test_it_tells_published_from_older_and_from_nobodys(tiny: Any) -> None:
    both = [[tiny.Doc("a flobrik"), tiny.Doc("fine")], [tiny.Doc("nothing")]]
    old = tiny.corpus({"web": both}).documents["web"]
    new = tiny.corpus({"web": [[tiny.Doc("fine")], [tiny.Doc("nothing")]]}).documents["web"]
    kept = tiny.corpus({"prose": [[tiny.Doc("another flobrik")]]}).documents["prose"]
    stray = tiny.corpus({"code": [[tiny.Doc("flobrik()")]]}).documents["code"]
    for made, key in ((old, "1"), (new, "2"), (kept, "1")):
        tiny.ctx.refs.publish(made, key)
    stop = listed(tiny.ctx, "flobrik\ttrade\n")
    found = {one.md5: one for one in find(tiny.ctx, Matching(), stop)}
    assert set(found) == {made.parts[0].blob.md5 for made in (old, kept, stray)}
    assert {(one.published, one.older, one.documents, one.lists) for one in found.values()} == {
        ((), ("web/documents",), 1, ("keywords.txt",)),
        (("prose/documents",), (), 1, ("keywords.txt",)),
        ((), (), 1, ("keywords.txt",)),
    }
    assert list(find(tiny.ctx, Matching(), listed(tiny.ctx, "vexnuk\ttrade\n"))) == []
