"""A recipe is read whole or refused, and each thing wrong with it is named by file, key and line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from plinth.errors import RecipeError
from plinth.recipe.column_checks import notes
from plinth.recipe.load import check, fingerprint, load, resolved

RIGHT = """\
name: small
corpus:
  annotate:
    language: {}
    licence: {}
    gopher_quality: {}
    pii: {}
  buckets:
    web:
      description: Pages.
      owner: corpus@example.org
      sources:
        - kind: warc
          path: web.warc.gz
          licence: MIT
          terms: {train: true, redistribute: true, commercial: true}
          domain: example.org
          snapshot: 2026-11-01
  policies:
    default:
      rules:
        - {reason: licence, drop: not licence.permitted}
        - {reason: too_short, drop: gopher_quality.word_count < 50}
      edits:
        - {reason: email, spans: pii.spans}
  permitted_licences: [MIT]
mixture:
  total_tokens: 65536
  phases:
    - {name: main, fraction: 1, weights: {web: 1}}
release:
  name: small
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(name, text)` makes a file; `write(replace={old: new})` a variant of the right recipe."""

    def make(name: str = "recipe.yaml", text: str = RIGHT, replace: dict[str, str] | None = None) -> Path:
        for old, new in (replace or {}).items():
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def line_of(path: Path, fragment: str) -> int:
    """The number of the only line that holds `fragment`."""
    (found,) = [number for number, line in enumerate(path.read_text().splitlines(), 1) if fragment in line]
    return found


def only(path: Path) -> tuple[str, int, str, str]:
    """Key, line, message and hint of the single problem of a recipe."""
    recipe, problems = check(path)
    assert recipe is None
    assert len(problems) == 1, [str(problem) for problem in problems]
    (problem,) = problems
    assert problem.mark.file == str(path)
    return problem.key, problem.mark.line, problem.message, problem.hint


def test_right_recipe_loads_with_defaults(write: Write) -> None:
    recipe = load(write())
    assert recipe.name == "small"
    assert recipe.corpus.buckets["web"].sources[0].snapshot == "2026-11-01"  # a date stays text
    assert recipe.tokenizer.vocab_size == 8192
    assert recipe.corpus.policies["default"].rules[1].drop == "gopher_quality.word_count < 50"


@pytest.mark.parametrize(
    ("old", "new", "key", "message", "hint"),
    [
        ("licence: MIT", "licnce: MIT", "corpus.buckets.web.sources[0].licnce", "unknown key", "`licence`"),
        ("name: small\ncorpus", "nme: small\ncorpus", "nme", "unknown key", "`name`"),
        ("kind: warc", "kind: wrac", "corpus.buckets.web.sources[0].kind", 'found "wrac"', "`warc`"),
        ("total_tokens: 65536", 'total_tokens: "65536"', "mixture.total_tokens", "valid integer", ""),
        ("{train: true,", "{train: yes,", "corpus.buckets.web.sources[0].terms.train", "valid boolean", "`true`"),
        ("fraction: 1,", "fraction: 0.5,", "mixture.phases", "add up to 0.5, expected 1", ""),
        ("weights: {web: 1}", "weights: {wbe: 1}", "mixture.phases[0].weights.wbe", "no bucket 'wbe'", ""),
        ("weights: {web: 1}", "weights: {web: -1}", "mixture.phases[0].weights.web", "greater than or equal to 0", ""),
        ("total_tokens: 65536", "total_tokens: 512", "mixture.total_tokens", "fewer than one global batch (16)", ""),
        ("name: small\ncorpus", "name: Small\ncorpus", "name", "expected lower-case letters", ""),
    ],
)
def test_one_fault_is_named(write: Write, old: str, new: str, key: str, message: str, hint: str) -> None:
    path = write(replace={old: new})
    found = only(path)
    assert found[0] == key
    assert message in found[2]
    assert hint in found[3]
    assert found[1] == line_of(path, new.splitlines()[0]) or key == "mixture.phases"


def test_all_problems_come_at_once_in_order_of_lines(write: Write) -> None:
    path = write(replace={"kind: warc": "kind: 7", "total_tokens: 65536": "total: 1", "  name: small": "  nam: small"})
    _, problems = check(path)
    assert [problem.key for problem in problems] == [
        "corpus.buckets.web.sources[0].kind",
        "mixture.total_tokens",
        "mixture.total",
        "release.nam",
    ]
    lines = [problem.mark.line for problem in problems]
    assert lines == sorted(lines)


def test_missing_section_says_what_it_is_for(write: Write) -> None:
    path = write(replace={"          domain: example.org\n": ""})
    key, line, message, hint = only(path)
    assert (key, message) == ("corpus.buckets.web.sources[0].domain", "missing")
    assert line == 13  # the source that lacks it
    assert "host name" in hint


ALONE = RIGHT[: RIGHT.index("mixture:")]


def test_a_corpus_alone_is_a_recipe(write: Write) -> None:
    recipe = load(write(text=ALONE))
    assert (recipe.mixture, recipe.release) == (None, None)
    assert resolved(write(text=ALONE)).keys() == {"name", "description", "harvest", "corpus"}
    assert notes(recipe) == []
    for required, section in ((recipe.required_mixture, "mixture"), (recipe.required_release, "release")):
        with pytest.raises(RecipeError, match=f"the recipe small has no `{section}:`"):
            required()


@pytest.mark.parametrize("section", ["tokenizer", "shards", "training", "evaluation"])
def test_a_section_that_no_stage_would_read_is_named(write: Write, section: str) -> None:
    key, line, message, _ = only(write(text=ALONE + section + ": {}\n"))
    assert (key, line) == (section, ALONE.count("\n") + 1)
    assert "has no effect without `mixture`" in message
    assert load(write(text=ALONE + section + ": {}\n" + RIGHT[len(ALONE) :])).mixture is not None


def test_a_sections_own_check_is_named(write: Write) -> None:
    path = write(text=RIGHT + "training:\n  model: {dim: 96, heads: 8, kv_heads: 3}\n")
    key, line, message, _ = only(path)
    assert (key, line) == ("training.model", len(RIGHT.splitlines()) + 2)
    assert message == "heads 8 is not a multiple of kv_heads 3"


def test_rates_fit_together(write: Write) -> None:
    tail = "training:\n  optimizer: {lr: 1e-4, min_lr: 1e-3, warmup_fraction: 0.9, decay_fraction: 0.2}\n"
    keys = [problem.key for problem in check(write(text=RIGHT + tail))[1]]
    assert keys == ["training.optimizer.min_lr", "training.optimizer.warmup_fraction"]


def test_a_change_after_the_last_step_is_found_before_the_corpus_is_made(write: Write) -> None:
    late = "training:\n  changes:\n    - {from_step: 2, global_batch_sequences: 16}\n    "
    late += "- {from_step: 900, global_batch_sequences: 8}\nrelease:"
    loaded, (problem,) = check(write(replace={"release:": late}))
    assert loaded is None
    assert (problem.key, problem.mark.line) == (
        "training.changes[1]",
        RIGHT.count("\n", 0, RIGHT.index("release:")) + 4,
    )
    assert "from_step 900 cannot be applied: the run ends earlier, after" in problem.message


def test_notes_name_what_never_happens(write: Write) -> None:
    quiet = "training:\n  global_batch_sequences: 8\n  checkpoints: {every_steps: 500}\nrelease:"
    loaded = load(write(replace={"release:": quiet}))
    said = notes(loaded)
    assert any(line.startswith("training.checkpoints.every_steps: 500, but the run has ") for line in said)


def test_notes_name_scripts_that_an_own_trainer_would_not_find(write: Write) -> None:
    own = "training:\n  trainer: {command: [/usr/bin/python, bin/train.py, -m, team.train, run.sh, --lr=1]}\nrelease:"
    said = notes(load(write(replace={"release:": own})))
    starts = [line.partition(" is a relative path")[0] for line in said if "relative path" in line]
    assert starts == [f"training.trainer.command: {word}" for word in ("bin/train.py", "run.sh")]
    assert not any("guard" in line for line in said)  # only Plinth's loop has one


def test_batch_must_divide_over_ranks(write: Write) -> None:
    path = write(text=RIGHT + "training:\n  global_batch_sequences: 12\n")
    key, _, message, _ = only(path)
    assert key == "training.global_batch_sequences"
    assert "12 is not a multiple of data ranks x micro_batch_sequences = 2 x 4" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing"),
        ("- a\n- b\n", "found a sequence"),
        ("name: [a\n", "not YAML"),
        ("name: a\x01\n", "not YAML"),
        ("name: a\nname: b\n", "written twice; first on line 1"),
        ("1: a\n", "is not text"),
        ("base: &b {x: 1}\n<<: *b\n", "merge keys (`<<`) are not supported"),
        ("name: !!python/name:os.system\n", "is not text"),
        ("name: !!timestamp 2026-11-01\n", "is not text"),
        ("x: &x [*x]\n", "refers to itself"),
        ("x: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply"),
        ("training: {optimizer: {lr: .inf}}\n", 'found ".inf", expected a valid number'),
    ],
)
def test_hostile_yaml_is_a_named_problem(write: Write, text: str, message: str) -> None:
    _, problems = check(write(text=text))
    assert any(message in problem.message for problem in problems), [str(problem) for problem in problems]


def test_endless_aliases_are_refused_quickly(write: Write) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    _, problems = check(write(text="\n".join(levels)))
    assert any("makes the recipe too large" in problem.message for problem in problems)


def test_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"name: a\ndescription: \xff\n")
    key, line, message, _ = only(path)
    assert (key, line) == ("", 2)
    assert "not UTF-8" in message


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_unreadable_file_is_a_recipe_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load(tmp_path / name)


def test_error_survives_pickling(write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        load(write(text="name: a\n"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


class TestExtends:
    def test_child_wins_key_by_key(self, write: Write) -> None:
        write("base.yaml")
        child = write("child.yaml", "extends: base.yaml\nname: child\nmixture: {total_tokens: 131072}\n")
        recipe = load(child)
        assert (recipe.name, recipe.mixture.total_tokens) == ("child", 131072)
        assert recipe.mixture.phases == load(child.parent / "base.yaml").mixture.phases

    def test_lists_are_replaced_and_null_takes_away(self, write: Write) -> None:
        write("base.yaml")
        text = "extends: base.yaml\ncorpus:\n  permitted_licences: [ISC]\n  policies:\n    default: {edits: null}\n"
        recipe = load(write("child.yaml", text))
        assert recipe.corpus.permitted_licences == ("ISC",)
        assert recipe.corpus.policies["default"].edits == ()
        assert len(recipe.corpus.policies["default"].rules) == 2

    def test_problem_is_placed_in_the_file_that_has_it(self, write: Write) -> None:
        base = write("base.yaml", replace={"kind: warc": "kind: x"})
        child = write("child.yaml", "extends: base.yaml\nmixture: {total_tokens: a}\n")
        _, problems = check(child)
        assert [(problem.mark.file, problem.mark.line) for problem in problems] == [(str(child), 2), (str(base), 13)]

    def test_replaced_list_has_the_childs_lines(self, write: Write) -> None:
        write("base.yaml")
        child = write("child.yaml", "extends: base.yaml\ncorpus:\n  permitted_licences:\n    - MIT\n    - 7\n")
        key, line, _, _ = only(child)
        assert (key, line) == ("corpus.permitted_licences[1]", 5)

    def test_path_is_relative_to_the_file(self, write: Write, tmp_path: Path) -> None:
        write("base.yaml")
        (tmp_path / "inner").mkdir()
        assert load(write("inner/child.yaml", "extends: ../base.yaml\n")).name == "small"

    @pytest.mark.parametrize("text", ["extends: a.yaml\n", "extends: b.yaml\n"])
    def test_circle_is_refused(self, write: Write, text: str) -> None:
        write("b.yaml", "extends: a.yaml\n")
        _, problems = check(write("a.yaml", text))
        assert any(problem.key == "extends" and "circular" in problem.message for problem in problems)

    def test_absent_parent_is_named(self, write: Write) -> None:
        _, problems = check(write("a.yaml", "name: a\nextends: gone.yaml\n"))
        (problem,) = problems
        assert (problem.key, problem.mark.line) == ("extends", 2)
        assert "gone.yaml" in problem.message


class TestFingerprint:
    def test_comments_order_and_written_defaults_do_not_count(self, write: Write) -> None:
        recipe = load(write())
        again = write("again.yaml", "# note\n" + yaml.safe_dump(resolved(write())))
        assert fingerprint(load(again)) == fingerprint(recipe)

    def test_whole_numbers_equal_their_floats(self, write: Write) -> None:
        other = write("other.yaml", replace={"fraction: 1,": "fraction: 1.0,"})
        assert fingerprint(load(other)) == fingerprint(load(write()))

    def test_a_changed_value_counts(self, write: Write) -> None:
        other = write("other.yaml", replace={"word_count < 50": "word_count < 51"})
        assert fingerprint(load(other)) != fingerprint(load(write()))


def test_resolved_recipe_is_json_and_loads_again(write: Write, tmp_path: Path) -> None:
    data = json.loads(json.dumps(resolved(write())))
    path = tmp_path / "resolved.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    assert load(path) == load(write())


@pytest.mark.parametrize(
    ("written", "meant"),
    [("no", "no"), ("on", "on"), ("010", "010"), ("1:30", "1:30"), ("2026-46", "2026-46"), ("~", ""), ("0x10", "")],
)
def test_scalars_are_yaml_1_2(write: Write, written: str, meant: str) -> None:
    path = write(replace={"description: Pages.": f"description: {written}"})
    if meant:
        assert load(path).corpus.buckets["web"].description == meant
    else:
        assert only(path)[0] == "corpus.buckets.web.description"


def test_numbers_with_exponents_and_underscores(write: Write) -> None:
    tail = "training:\n  optimizer: {lr: 3e-3, min_lr: 1.5E-8}\n"
    path = write(text=RIGHT.replace("65536", "65_536") + tail)
    recipe = load(path)
    assert (recipe.mixture.total_tokens, recipe.training.optimizer.lr) == (65536, 0.003)
    assert recipe.training.optimizer.min_lr == 1.5e-8
