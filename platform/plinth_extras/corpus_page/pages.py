"""Pages and writes of the corpus page: the list, one document, rules and what-ifs, labels and saved rules."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from plinth.compute.context import Context
from plinth.corpus.slices import reviews
from plinth.errors import MissingError, PlinthError, RequestError, SignatureError
from plinth_extras.corpus_page import recipe_edit, search, whatif
from plinth_extras.corpus_page.document import PREVIEW, WINDOW, DocumentReader, grouped
from plinth_extras.corpus_page.ledger import ROW_COLUMNS, OpenLedger
from plinth_extras.corpus_page.site import Call
from plinth_extras.corpus_page.view import MAX_PAGE, PAGE_ROWS, View


def documents(call: Call) -> Response:
    """Return the list of documents with its filters, histograms and searches."""
    with call.site.reader.opened(call.ctx) as ledger:
        view = View.parse(call.query, ledger.numeric)
        if target := _target(call, view):
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        found, rows, notice = None, list[dict[str, Any]](), ""
        if view.similar:
            rows = search.near(call.ctx, ledger, view)
        elif view.text:
            found = search.words(call.ctx, ledger, view)
            rows = found.rows
        else:
            rows = ledger.rows(view)
        labels, notice = _labels(call.ctx)
        totals, facets = ledger.counts(view)
        return call.page(
            "documents",
            ledger,
            view=view,
            rows=rows,
            found=found,
            notice=notice,
            labels=labels,
            totals=totals,
            facets=facets,
            histograms=ledger.histograms(view),
            last_page=min(MAX_PAGE, max(1, -(-totals.documents // PAGE_ROWS))),
        )


def _target(call: Call, view: View) -> str:
    """Return the address of the list that the search form or a range form asks for, or an empty string."""
    if call.given("kind"):
        other = {"text": "similar", "similar": "text"}.get(call.given("kind"), "text")
        return view.link(**{other: "", "text" if other == "similar" else "similar": call.given("q")})
    column = call.given("range")
    if column:
        pairs = view.pairs("in." + column, "page", "after")
        return "/?" + urlencode([*pairs, (f"in.{column}", f"{call.given('low')}..{call.given('high')}")])
    return ""


def document(call: Call) -> Response:
    """Return one document, or its preview next to the list."""
    preview = call.given("part") == "preview"
    start = call.given("from")
    start_cp = int(start) if start.isdecimal() and len(start) < 12 else 0
    with call.site.reader.opened(call.ctx) as ledger:
        own = DocumentReader(call.ctx, ledger)
        place = own.place(call.request.path_params["id"], call.given("at"))
        row = own.columns(place)
        window = own.window(place, start_cp, PREVIEW if preview else WINDOW)
        fired = own.rules(place, row)
        reasons = [row["reason"]] if row["reason"] else [rule.reason for rule in own.policy(place[0]).rules]
        asked = call.given("reason")
        labels, notice = _labels(call.ctx)
        data: dict[str, Any] = {"row": row, "place": place, "window": window, "rules": fired, "notice": notice}
        data |= {"reasons": [asked] if asked in reasons or asked == row["reason"] else reasons, "asked": asked}
        data |= {"labels": labels.get(row["id"], []), "at": ":".join(map(str, place))}
        if preview:
            return call.page("preview", ledger, **data)
        tokens, runs = own.training(row)
        return call.page(
            "document",
            ledger,
            duplicates=own.duplicates(row),
            columns=grouped(row),
            tokens=tokens,
            runs=runs,
            window_characters=WINDOW,
            **data,
        )


def what_if(call: Call) -> Response:
    """Return the rules of the policies, or one rule with moved thresholds and the documents that change sides."""
    with call.site.reader.opened(call.ctx) as ledger:
        known = whatif.rules(call.ctx, ledger, call.site.policies())
        if not call.given("reason"):
            return call.page("rules", ledger, rules=known, fired=whatif.fired(ledger, known))
        rule = whatif.rule_of(known, call.given("policy"), call.given("reason"))
        moves = {
            int(name[1:]): value for name, value in call.query if name[:1] == "t" and name[1:].isdecimal() and value
        }
        text = call.given("drop").strip() or rule.text
        whatif.compiled(ledger, rule, text)  # a text that cannot be parsed has no thresholds
        text = whatif.moved(text, moves)
        seed = int(call.given("seed")) if call.given("seed").isdecimal() and len(call.given("seed")) < 9 else 1
        effect = whatif.effect(call.ctx, ledger, rule, text, seed)
        shown = [(one, _distribution(ledger, rule, one)) for one in whatif.thresholds(text)]
        read = map(whatif.ledger_column, sorted(whatif.compiled(ledger, rule, text).columns))
        columns = [name for name in read if name not in ROW_COLUMNS or name in ledger.numeric]
        labels, notice = _labels(call.ctx)
        return call.page(
            "whatif",
            ledger,
            rule=rule,
            text=text,
            effect=effect,
            before=[one.value for one in whatif.thresholds(rule.text)],
            thresholds=shown,
            sides=[
                (name, side, ledger.at(side.places, columns))
                for name, side in (("dropped", effect.dropped), ("kept", effect.kept))
            ],
            columns=columns,
            seed=seed,
            labels=labels,
            notice=notice,
            saved=call.given("saved"),
            **_saving(call, rule),
        )


def _distribution(ledger: OpenLedger, rule: whatif.EvaluatedRule, one: whatif.RuleThreshold) -> Any:
    """Return the histogram of a threshold's column over the rule's buckets; None for a column without numbers."""
    column = whatif.ledger_column(one.column) if one.column else ""
    view = View(chosen=tuple(("bucket", bucket) for bucket in rule.buckets), shown=(column,))
    return ledger.histograms(view)[0][1] if column in ledger.numeric else None


def _saving(call: Call, rule: whatif.EvaluatedRule) -> dict[str, Any]:
    """Return the rule's text in the recipe, and the reason why it cannot be saved there, or an empty string."""
    path = call.site.recipe_path
    try:
        recipe = call.site.recipe()
        if path is None or recipe is None:
            raise MissingError("the page was started without a recipe", remedy="name one with -r FILE")
        current = recipe_edit.current(recipe, rule.policy, rule.reason)
        if not call.person.may_edit:
            raise SignatureError(
                f"{call.person.name} may not edit the recipe", remedy="start the page with --editor NAME"
            )
        recipe_edit.require_editable(path, call.ctx.workspace.root)
    except PlinthError as error:
        return {"current": "", "refusal": f"{error.what}; {error.remedy}" if error.remedy else error.what}
    return {"current": current, "refusal": ""}


def save_rule(call: Call) -> Response:
    """Save a changed rule into the recipe, and return to its page."""
    form, path = call.form, call.site.recipe_path
    with call.site.reader.opened(call.ctx) as ledger:
        known = whatif.rules(call.ctx, ledger, call.site.policies())
        rule = whatif.rule_of(known, form.get("policy", ""), form.get("reason", ""))
        text = form.get("drop", "").strip()
        whatif.compiled(ledger, rule, text)
    saving = _saving(call, rule)
    if saving["refusal"] or path is None:
        raise SignatureError(f"the rule cannot be saved: {saving['refusal']}")
    position = recipe_edit.save(path, rule.policy, rule.reason, form.get("before", ""), text)
    query = {"policy": rule.policy, "reason": rule.reason, "drop": text, "saved": str(position)}
    return RedirectResponse("/whatif?" + urlencode(query), HTTPStatus.SEE_OTHER)


def label(call: Call) -> Response:
    """Store a label of a document, as `plinth corpus label` does."""
    moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    given = {name: call.form.get(name, "") for name in ("id", "reason", "label", "note")}
    try:
        made = reviews.Review.model_validate({**given, "reviewer": call.person.name, "time": moment})
    except ValidationError as error:
        raise RequestError(
            "the label is not valid", found=error.errors()[0]["msg"], expected="a document, a reason, and good or bad"
        ) from error
    with call.site.reader.opened(call.ctx) as ledger:
        if not ledger.find([made.id]):
            raise MissingError(f"no document {made.id}")
    reviews.append(call.ctx.workspace, [made])
    back = call.form.get("back", "/")
    safe = back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"
    return RedirectResponse(safe, HTTPStatus.SEE_OTHER)


def _labels(ctx: Context) -> tuple[dict[str, list[reviews.Review]], str]:
    """Return the labels by document, and what is wrong with their files, or an empty string."""
    found: dict[str, list[reviews.Review]] = {}
    try:
        for review in reviews.read(ctx.workspace):
            found.setdefault(review.id, []).append(review)
    except PlinthError as error:
        return {}, error.what
    return found, ""
