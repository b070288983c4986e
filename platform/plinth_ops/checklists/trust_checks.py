"""Checks of the root of trust, secrets, and the installed code."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final

import yaml

import plinth
from plinth.errors import RecipeError, SignatureError
from plinth.trust.dsse import APPROVER, POLICY, PROMOTER, ROOT, TRAINER, time_of
from plinth.trust.root import Trust
from plinth_ops.checklists.review import (
    Check,
    CheckAnswer,
    CheckScope,
    failed,
    not_applicable,
    passed,
    undetermined,
    warned,
)

#: Roles whose keys must not all be on one machine: the trainer must not approve or set the policy.
APART = (TRAINER, APPROVER, POLICY, PROMOTER)


def root_pinned(scope: CheckScope) -> CheckAnswer:
    """Check that a root of trust is pinned outside the workspace and does not expire soon."""
    workspace = scope.ctx.workspace
    trust = Trust.newest(workspace)
    if trust.folder.resolve().is_relative_to(workspace.root.resolve()):
        return failed(f"{trust.folder} is in the workspace, so anyone who can write there could replace it")
    left = (time_of(trust.root.expires) - datetime.fromtimestamp(scope.now, UTC)).total_seconds() / 86400
    found = f"{trust.root.title}, expires {trust.root.expires}, pinned in {trust.folder}"
    if left <= 0:
        return failed(found)
    return warned(f"{found}: {left:.0f} days") if left < scope.settings.expiry_days else passed(found)


def roles_held(scope: CheckScope) -> CheckAnswer:
    """Check that every role has enough valid keys for its threshold."""
    root = Trust.newest(scope.ctx.workspace).root
    short = []
    for name in root.roles:
        authority = root.authority(name)
        valid = sum(key.revoked_from is None for key in authority.keys.values())
        if valid < authority.threshold:
            short.append(f"{name}: {valid} of {authority.threshold}")
    if short:
        return failed("; ".join(short))
    return passed(f"{len(root.roles)} roles, {len(root.keys)} keys")


def root_shared(scope: CheckScope) -> CheckAnswer:
    """Check that the root of trust is not a demo root, and that no single key holder can change it."""
    root = Trust.newest(scope.ctx.workspace).root
    if root.demo:
        return warned(f"{root.title}: every statement that it signs is marked as signed by a demo root")
    threshold = root.authority(ROOT).threshold
    found = f"{threshold} of {len(root.authority(ROOT).keys)} root keys must sign a change"
    return warned(f"{found}: one key holder can change the root alone") if threshold < 2 else passed(found)


def roles_apart(scope: CheckScope) -> CheckAnswer:
    """Check that the private keys of roles that control each other are not all on this machine."""
    trust = Trust.newest(scope.ctx.workspace)
    here = [role for role in APART if _has_key(trust.folder, role)]
    found = f"private keys on this machine: {', '.join(here) or 'none'}"
    if len(here) != len(APART):
        return passed(found)
    return warned(f"{found}; with them, one user can train, approve and promote")


def key_modes(scope: CheckScope) -> CheckAnswer:
    """Check that no other user can access the keys in the trust folder or write to the folder."""
    folder = scope.ctx.workspace.trust_folder
    if not folder.is_dir():
        return undetermined(f"no folder {folder}")
    open_ = list(_open_to_others(folder))
    if open_:
        return failed(", ".join(open_[:5]) + (f" and {len(open_) - 5} more" if len(open_) > 5 else ""))
    return passed(f"{folder} {_mode_of(folder)}, all owned by user {os.geteuid()}; keys and seal are private")


def keys_outside(scope: CheckScope) -> CheckAnswer:
    """Check that the workspace contains no private key."""
    root = scope.ctx.workspace.root
    if not root.is_dir():
        return not_applicable(f"no folder {root}")
    found = [str(path.relative_to(root)) for path in _small_files(root) if b"PRIVATE KEY-----" in path.read_bytes()]
    return failed(", ".join(found)) if found else passed(f"no private key was found in the small files of {root}")


def _mode_of(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def _has_key(folder: Path, role: str) -> bool:
    return f"PLINTH_KEY_{role.upper()}" in os.environ or any((folder / "keys" / role).glob("*"))


#: Parts of a trust folder that other users must not be able to read. They must not be able to write the other parts.
_SECRET = ("keys", "seal", "login")


def _open_to_others(folder: Path) -> Iterator[str]:
    for path in (folder, *sorted(folder.rglob("*"))):
        found = path.lstat()
        mode, secret = stat.S_IMODE(found.st_mode), path == folder or path.relative_to(folder).parts[0] in _SECRET
        if stat.S_ISLNK(found.st_mode):
            yield f"{path} is a link"
        elif found.st_uid != os.geteuid():
            yield f"{path} belongs to user {found.st_uid}"
        elif mode & (0o077 if secret else 0o022):
            yield f"{path} has mode {mode:04o}"


#: Workspace folders with data, which are too large to search.
_DATA = {"store", "records", "manifests", "input", "runs", "mlflow", "dagster", "tmp", "reports", "costs"}
_SMALL = 1 << 16


def _small_files(root: Path) -> Iterator[Path]:
    for top in sorted(root.iterdir()):
        under = [top] if top.is_file() else top.rglob("*") if top.is_dir() and top.name not in _DATA else []
        yield from (path for path in under if path.is_file() and path.lstat().st_size <= _SMALL)


def _pinned(scope: CheckScope) -> CheckAnswer:
    try:
        return root_pinned(scope)
    except SignatureError as error:
        return failed(error.brief)


#: Pattern of a password in the authority of a URL.
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]+:([^/\s@]+)@")
#: Pattern of a reference to a secret, which is not the secret itself.
_REFERENCE = re.compile(r"\$\{?\w+\}?|<[^>]*>|\*+")
_SETTINGS = ("objectives.yaml", "checklists.yaml", "budget/settings.yaml")


def no_literals(scope: CheckScope) -> CheckAnswer:
    """Check that recipes (with the recipes they extend), workspace settings and run environments contain no secrets."""
    places = dict(_places(scope))
    if not places:
        return not_applicable("no recipe and no settings")
    found = [f"{where}: {key}" for where, data in places.items() for key in _secrets(data)]
    return failed("; ".join(found)) if found else passed(f"none in {', '.join(sorted(places))}")


def _places(scope: CheckScope) -> Iterator[tuple[str, Any]]:
    from plinth.recipe.yaml_lines import follow

    root = scope.ctx.workspace.root
    if scope.recipe_path is not None:
        try:
            # packaged recipes that it extends are in the same folder if it is packaged itself
            yield scope.recipe_path.name, follow(scope.recipe_path, scope.recipe_path.parent).data
        except RecipeError:  # the recipe extends a recipe packaged elsewhere, so the resolved recipe is checked
            assert scope.recipe is not None
            yield scope.recipe_path.name, scope.recipe.model_dump(mode="json")
    for name in _SETTINGS:
        if (root / name).is_file():
            yield name, yaml.safe_load((root / name).read_text(encoding="utf-8"))
    for config in scope.runs:
        yield f"runs/{config.run_id}", {"environment": dict(config.launch.environment)}


def _secrets(data: Any, key: str = "") -> Iterator[str]:
    """Yield the path of each key in nested data whose value is a secret. The secret itself is never yielded."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _secrets(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _secrets(value, f"{key}.{index}")
    elif isinstance(data, str) and _secret(key.rpartition(".")[2], data):
        yield key


def _secret(name: str, value: str) -> bool:
    from plinth.corpus.annotate.pii import network

    raw = value.encode(errors="replace")
    url = _URL_PASSWORD.search(value)
    if url and not _REFERENCE.fullmatch(url[1]):
        return True
    if network.PEM.search(raw) or network.JWT.search(raw) or any(form.search(raw) for _, _, form in network.FORMS):
        return True
    named = network.SECRET_NAME.search(name.encode()) and not network.OPEN_NAME.search(name.encode())
    return bool(named and len(value) >= 8 and not _REFERENCE.fullmatch(value) and not value.startswith(("/", "file:")))


#: Modules that may unpickle, with the data: pipes to child processes.
MAY_UNPICKLE: Final = {"plinth/compute/engine.py": "messages of its own worker processes"}

_CORE = ("plinth_text", "plinth", "plinth_registry", "plinth_assets", "plinth_jobs")
_PACKAGES = (*_CORE, "plinth_ops", "plinth_lab", "plinth_audit", "plinth_extras")
#: Modules whose `load` and `loads` can execute code from their input.
_UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
_READING = {"load", "loads", "Unpickler", "open"}
#: Only modules that contain one of these words are parsed.
_MAY_BE = re.compile(
    rb"\b(?:c?[pP]ickle|_pickle|dill|cloudpickle|joblib|shelve|marshal|jsonpickle)(?:[.,]|\s+(?:as|import)\b|\s*\n)|"
    rb"read_pickle|\b(?:np|numpy|torch|yaml)\.[\w.]*load|"
    rb"from\s+(?:numpy|torch|yaml)[\w.]*\s+import\s+(?:\(|[^\n]*load)|"
    rb"import\s+(?:numpy|torch|torch\.serialization|yaml)\s+as\s+(?!np\b)"
)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)")


def nothing_unpickled(scope: CheckScope) -> CheckAnswer:
    """Check that no module of the packages in `_PACKAGES` unpickles data, except the modules in `MAY_UNPICKLE`.

    The check reads the source and runs no code of these modules.
    """
    installed = [name for name in _PACKAGES if util.find_spec(name)]
    files = [(name, path) for name in installed for path in sorted(_folder(name).rglob("*.py"))]
    found = [
        f"{shown}:{line} {call}"
        for name, path in files
        if (shown := f"{name}/{path.relative_to(_folder(name))}") not in MAY_UNPICKLE
        for line, call in unpickling(path.read_bytes())
    ]
    return failed("; ".join(found)) if found else passed(f"{len(files)} files; allowed in {', '.join(MAY_UNPICKLE)}")


def unpickling(source: bytes) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each call in a module's source that may execute code from the call's input.

    The calls are found by name: `pickle.load` and similar functions under any alias, `torch.load` without
    `weights_only=True`, `numpy.load(allow_pickle=True)`, `pandas.read_pickle`, `yaml.load` without a safe loader.
    """
    if not _MAY_BE.search(source):
        return
    tree = ast.parse(source)
    aliases = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute):
            called = node.func if isinstance(node, ast.Call) else node
            name = _dotted(called, aliases)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords} if isinstance(node, ast.Call) else {}
            if _runs_what_it_reads(name, given, isinstance(node, ast.Call)):
                yield node.lineno, name


def _runs_what_it_reads(name: str, given: dict[str | None, str], called: bool) -> bool:
    module, _, last = name.rpartition(".")
    if module.partition(".")[0] in _UNPICKLING and last in _READING:
        return called or last != "open"
    if not called:
        return False
    if name in ("torch.load", "torch.serialization.load"):
        return given.get("weights_only") != "True"
    if name in ("numpy.load", "numpy.lib.npyio.load"):
        return given.get("allow_pickle", "False") != "False"
    if name in ("yaml.load", "yaml.load_all"):
        return "Safe" not in given.get("Loader", "")
    return last == "read_pickle" or name in ("yaml.unsafe_load", "yaml.full_load")


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield one.asname or one.name.partition(".")[0], one.name if one.asname else one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def commit_known(scope: CheckScope) -> CheckAnswer:
    """Check that the running code is from a Git commit, without local changes."""
    from plinth.training.attempts import commit_of

    found = commit_of(Path(plinth.__file__).resolve().parent)
    if not found.get("commit"):
        return undetermined(str(found.get("no_commit")))
    shown = f"commit {str(found['commit'])[:12]}"
    return warned(f"{shown}, with uncommitted changes") if found["dirty"] else passed(shown)


def pins_installed(scope: CheckScope) -> CheckAnswer:
    """Check that the installed packages have the versions in `constraints.txt`."""
    path = Path(plinth.__file__).resolve().parents[2] / "constraints.txt"
    if not path.is_file():
        return undetermined(f"no {path.name} next to the code")
    pins = {match[1].lower(): match[2] for line in path.read_text().splitlines() if (match := _PIN.match(line.strip()))}
    other = [
        f"{name} {found}, pinned {pins[name]}"
        for name, found in _installed(pins)
        if found.partition("+")[0] != pins[name].partition("+")[0]  # a build for one device has the same version
    ]
    return warned("; ".join(other)) if other else passed(f"{len(pins)} pins")


def _installed(pins: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in pins:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _folder(package: str) -> Path:
    (location,) = util.find_spec(package).submodule_search_locations  # type: ignore[union-attr, misc]
    return Path(location).resolve()


CHECKS = (
    Check(
        "root-pinned", "a root of trust is pinned outside the workspace and does not expire soon", "security",
        ("preproduction", "readiness", "security"),
        "pin a root with `plinth keys pin FILE`, or renew it with `plinth keys renew`", _pinned,
        waivable=False,
    ),
    Check(
        "roles-held", "every role has enough valid keys for its threshold", "security", ("readiness", "security"),
        "enroll a key with `plinth keys enrol ROLE KEY.pub --owner NAME`", roles_held, waivable=False,
    ),
    Check(
        "root-shared", "the root is not a demo root, and no key holder alone can change it", "security", ("security",),
        "create a root with `plinth keys init`; raise its threshold with `plinth keys threshold root 2`", root_shared,
    ),
    Check(
        "roles-apart", "keys of trainer, approver, policy and promoter are not all on one machine", "security",
        ("security",), "keep each role's key on its own machine (docs/keys.md)", roles_apart,
    ),
    Check(
        "key-modes", "only the user can access the trust folder", "security", ("readiness", "security"),
        "chmod -R go= on the folder; replace keys that others could read", key_modes,
    ),
    Check(
        "keys-outside", "the workspace has no private key", "security", ("security",),
        "move the key to the trust folder, revoke it and enroll a new key: others could read the old key", keys_outside,
    ),
    Check(
        "secret-literals", "recipes, settings and run environments have no secrets", "security",
        ("preproduction", "security"), "move the secret to the environment or a secret store, and replace the secret",
        no_literals,
    ),
    Check(
        "unpickling", "only messages of child processes are unpickled", "security", ("security",),
        "use safetensors, Parquet, JSON or NumPy without objects; an entry in MAY_UNPICKLE needs a reason",
        nothing_unpickled, waivable=False,
    ),
    Check(
        "code-commit", "the installed code is from a commit, without local changes", "platform",
        ("preproduction", "security"), "commit, or check out the reviewed commit", commit_known,
    ),
    Check(
        "pins", "installed packages have the pinned versions", "platform", ("preproduction", "security"),
        "run `make setup` in a checkout, or rebuild the container image", pins_installed,
    ),
)  # fmt: skip
