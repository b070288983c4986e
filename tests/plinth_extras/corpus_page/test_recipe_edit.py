"""A rule saved into a recipe: exactly the lines that must change, and nothing else."""

from __future__ import annotations

import difflib
import errno
import os
from pathlib import Path

import pytest

from plinth.errors import ConflictError, MissingError, RecipeError, RequestError, WorkspaceError
from plinth_extras.corpus_page import recipe_edit
from plinth_jobs.recipes import FOLDER, load, notes_folder

TOP = "language.label in ['en', 'eng_Latn'] and (gopher_repetition.top_3_gram > 0.10)"
REPEATED = "gopher_repetition.duplicate_10_grams > 0.5"
HEAD = "extends: tiny.yaml\nname: ours\n"
CODE = ["    code:", "      rules:", "        - {reason: too_few_words, drop: gopher_quality.word_count < 20}",
        f"        - {{reason: repeated, drop: {REPEATED}}}"]  # fmt: skip

CASES = {
    "a plain scalar, with a comment behind it": (
        f"{HEAD}# ours\ncorpus:\n  policies:\n    code:\n      rules:\n      - reason: repeated\n"
        "        drop: gopher_repetition.duplicate_10_grams > 0.60   # by eye\n\n      # last\n",
        "code", "repeated", REPEATED,
        ["-        drop: gopher_repetition.duplicate_10_grams > 0.60   # by eye",
         f"+        drop: {REPEATED}   # by eye"],
    ),
    "quotes stay": (
        f"{HEAD}corpus: {{policies: {{code: {{rules: "
        "[{drop: 'gopher_quality.word_count < 9', reason: short}]}}}\n",
        "code", "short", "language.label == 'de'",
        ["-corpus: {policies: {code: {rules: [{drop: 'gopher_quality.word_count < 9', reason: short}]}}}",
         "+corpus: {policies: {code: {rules: [{drop: 'language.label == ''de''', reason: short}]}}}"],
    ),
    "a block scalar": (
        f"{HEAD}corpus:\n  policies:\n    code:\n      rules:\n        - reason: repeated\n          drop: >\n"
        "            gopher_repetition.duplicate_10_grams\n            > 0.60\n\n        # kept\n      edits: []\n",
        "code", "repeated", REPEATED,
        ["-          drop: >", "-            gopher_repetition.duplicate_10_grams", "-            > 0.60",
         f'+          drop: "{REPEATED}"'],
    ),
    "a profile's rule, into a list of the file": (
        f"{HEAD}corpus:\n  policies:\n    default:\n      rules:\n"
        "        - {reason: language, drop: not language.accepted}  # first\n        # no more\n",
        "default", "top_3_gram", TOP, [f'+        - {{reason: top_3_gram, drop: "{TOP}"}}'],
    ),
    "a profile's rule, into an empty list": (
        f"{HEAD}corpus:\n  policies:\n    default: {{rules: []}}\n", "default", "top_3_gram", TOP,
        ["-    default: {rules: []}", f'+    default: {{rules: [{{reason: top_3_gram, drop: "{TOP}"}}]}}'],
    ),
    "an inherited list, written out": (
        f"{HEAD}corpus:\n  holdout: {{fraction: 0.05}}  # small\n\n# end\n", "code", "repeated", REPEATED,
        ["+  policies:", *(f"+{line}" for line in CODE)],
    ),
    "an inherited list, into a file without its sections": (
        HEAD, "code", "repeated", REPEATED,
        ["+corpus:", "+  policies:", *(f"+{line}" for line in CODE)],
    ),
    "an inherited list, into a flow mapping": (
        f"{HEAD}corpus: {{holdout: {{fraction: 0.05}}}} # small\n",
        "code", "too_few_words", "gopher_quality.word_count < 9",
        ["-corpus: {holdout: {fraction: 0.05}} # small",
         "+corpus: {holdout: {fraction: 0.05}, policies: {code: {rules: [{reason: too_few_words, drop: "
         "gopher_quality.word_count < 9}, {reason: repeated, drop: gopher_repetition.duplicate_10_grams > 0.60}]}}}"
         " # small"],
    ),
}  # fmt: skip


def saved(path: Path, text: str, policy: str, reason: str, new: str) -> list[str]:
    """Save a rule, and return the changed lines of the file."""
    path.write_bytes(text.encode())
    before = recipe_edit.current(load(path), policy, reason)
    position = recipe_edit.save(path, policy, reason, before, new)
    after = path.read_bytes().decode()
    assert reason in after.splitlines()[position.line - 1]
    assert recipe_edit.current(load(path), policy, reason) == new
    lines = difflib.unified_diff(text.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("name", CASES)
def test_only_these_lines_change(tmp_path: Path, name: str) -> None:
    text, policy, reason, new, lines = CASES[name]
    assert saved(tmp_path / "ours.yaml", text, policy, reason, new) == lines


@pytest.mark.parametrize("name", CASES)
def test_line_ends_of_windows_and_a_byte_order_mark_stay(tmp_path: Path, name: str) -> None:
    text, policy, reason, new, _ = CASES[name]
    path = tmp_path / "ours.yaml"
    saved(path, "\ufeff" + text.replace("\n", "\r\n"), policy, reason, new)
    after = path.read_bytes().decode()
    assert after.startswith("\ufeff")
    if "block scalar" not in name:
        assert after.count("\n") == after.count("\r\n")


def test_the_last_line_needs_no_line_end(tmp_path: Path) -> None:
    assert saved(tmp_path / "ours.yaml", HEAD.rstrip(), "code", "repeated", REPEATED)[:2] == [
        "+corpus:",
        "+  policies:",
    ]


def test_mode_and_link_of_the_file_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "ours.yaml", tmp_path / "link.yaml"
    path.write_text(HEAD)
    path.chmod(0o640)
    link.symlink_to(path)
    before = recipe_edit.current(load(link), "code", "repeated")
    recipe_edit.save(link, "code", "repeated", before, REPEATED)
    assert link.is_symlink()
    assert (path.stat().st_mode & 0o777, recipe_edit.current(load(path), "code", "repeated")) == (0o640, REPEATED)
    assert sorted(os.listdir(tmp_path)) == ["link.yaml", "ours.yaml"]


def test_a_rule_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(HEAD)
    with pytest.raises(ConflictError, match="repeated"):
        recipe_edit.save(path, "code", "repeated", "gopher_quality.word_count < 1", REPEATED)
    with pytest.raises(MissingError, match="code/nothing"):
        recipe_edit.save(path, "code", "nothing", "", REPEATED)
    assert path.read_text() == HEAD


@pytest.mark.parametrize(
    ("text", "new"),
    [
        (HEAD, "gopher_quality.nothing < 1"),  # no such column
        (HEAD, "gopher_quality.word_count <"),
        (  # one list for two policies
            f"{HEAD}corpus:\n  policies:\n    code: &one\n      rules: [{{reason: repeated, drop: language.mixed}}]\n"
            "    default: *one\n",
            REPEATED,
        ),
    ],
)
def test_a_wrong_rule_and_a_shared_list_leave_the_file_as_it_is(tmp_path: Path, text: str, new: str) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(text)
    before = recipe_edit.current(load(path), "code", "repeated")
    with pytest.raises(RecipeError):
        recipe_edit.save(path, "code", "repeated", before, new)
    assert (path.read_text(), os.listdir(tmp_path)) == (text, ["ours.yaml"])


def test_only_files_of_the_user_are_edited(tmp_path: Path) -> None:
    recipe_edit.require_editable(tmp_path / "ours.yaml", tmp_path)
    for path in (FOLDER / "tiny.yaml", notes_folder(tmp_path) / "recipe.yaml"):
        with pytest.raises(RequestError, match="not a recipe of yours"):
            recipe_edit.require_editable(path, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(CASES["a plain scalar, with a comment behind it"][0])
    before = path.read_bytes()

    def refused(*_: object, **__: object) -> None:  # the tests may run as root, who can write everywhere
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(recipe_edit.tempfile, "NamedTemporaryFile", refused)
    old = recipe_edit.current(load(path), "code", "repeated")
    with pytest.raises(WorkspaceError, match="cannot write"):
        recipe_edit.save(path, "code", "repeated", old, REPEATED)
    assert path.read_bytes() == before
