"""The ledger: no limit is ever exceeded, even with concurrent submissions; settled items count with their actual
cost."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.errors import BudgetError, StorageError
from plinth.operation.spending_ledger import Database, JobCost, Ledger, Limit, Reservation, month
from tests.postgres_server import postgres_server

NOVEMBER = 1_795_000_000.0


def wanted(id: str, reserved: int | None, **more: Any) -> Reservation:
    given = {"workspace": "w", "run": id, "team": "web", "experiment": "", "made": NOVEMBER} | more
    fixed = {"recipe": "demo", "person": "ann", "ranks": 8, "price": 2_000_000, "spot": False, "reason": "a test"}
    return Reservation(id=id, reserved=reserved, work="same", before_s=0.0, **fixed, **given)


def limited(ledger: Ledger, amount: int | None, scope: Any = "all", name: str = "", period: Any = "total") -> None:
    ledger.limit(Limit(scope=scope, name=name, amount=amount, period=period, person="bo", made=NOVEMBER))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("PostgreSQL"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty ledger."""
    if request.param == "sqlite":
        return str(tmp_path / "budget" / "ledger.sqlite")
    url: str = request.getfixturevalue("server")
    with Database(url, {}).transaction() as execute:
        execute("DROP TABLE IF EXISTS reservations, limits")
    return url


def cost(spent: int) -> JobCost:
    return JobCost(spent=spent, rank_s=spent / 2.0, tokens=100)


def test_a_submission_counts_as_its_bound_until_it_is_settled(place: str) -> None:
    ledger = Ledger(place)
    limited(ledger, 100)
    ledger.reserve(wanted("a", 60))
    with pytest.raises(BudgetError, match="could exceed") as refused:
        ledger.reserve(wanted("b", 41))
    assert "0.00 spent or reserved" in str(refused.value.found)  # millionths
    ledger.settle("a", cost(10), NOVEMBER)
    ledger.reserve(wanted("b2", 90))
    found = [(one.id, one.reserved, one.spent) for one in ledger.find()]
    assert found == [("a", 60, 10), ("b", 0, 0), ("b2", 90, None)]
    assert [(limit.amount, counted) for limit, counted in ledger.limits(NOVEMBER)] == [(100, 100)]
    ledger.settle("a", cost(99), NOVEMBER)  # once only
    assert ledger.find()[0].spent == 10


def test_a_submission_of_the_same_run_takes_the_place_of_the_one_before(place: str) -> None:
    ledger = Ledger(place)
    limited(ledger, 100)
    first = ledger.reserve(wanted("one", 80, run="r"))
    assert ledger.reserve(wanted("two", 80, run="r")) == first  # its job is alive: nothing new is spent
    again = ledger.reserve(wanted("three", 70, run="r"), earlier=cost(30))
    assert (again.id, [one.spent for one in ledger.find()]) == ("three", [30, None])
    with pytest.raises(BudgetError):  # what the earlier job cost is not settled by a refusal
        ledger.reserve(wanted("four", 80, run="r"), earlier=cost(60))
    assert [one.id for one in ledger.find(open_only=True)] == ["three"]


def test_limits_are_of_teams_experiments_and_months(place: str) -> None:
    ledger = Ledger(place)
    limited(ledger, 100, "team", "web", "month")
    limited(ledger, 30, "experiment", "filters")
    ledger.reserve(wanted("old", 95, made=month(NOVEMBER) - 1.0))  # October's
    ledger.reserve(wanted("a", 70))
    ledger.reserve(wanted("b", 500, team="code"))
    with pytest.raises(BudgetError, match="not submitted") as refused:
        ledger.reserve(wanted("c", 31, experiment="filters", team="code"))
    assert "experiment filters: 0.00;" in str(refused.value.found)
    limited(ledger, 70, "team", "web", "month")
    with pytest.raises(BudgetError):
        ledger.reserve(wanted("d", 1))
    limited(ledger, None, "team", "web", "month")
    ledger.reserve(wanted("e", 10_000))


def test_what_nothing_bounds_is_refused_where_a_limit_holds_and_entered_where_none_does(place: str) -> None:
    ledger = Ledger(place)
    ledger.reserve(wanted("free", None))
    limited(ledger, 100, "team", "web")
    with pytest.raises(BudgetError, match="no upper bound"):
        ledger.reserve(wanted("a", None))
    ledger.reserve(wanted("b", None, team="code"))
    assert {one.run: one.spent for one in ledger.find()} == {"free": None, "a": 0, "b": None}


@pytest.mark.needs("PostgreSQL")
def test_a_server_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(StorageError, match="refused a statement") as failed:
        Ledger("postgresql://plinth:sesame@127.0.0.1:1/ledger").find()
    assert "postgresql://127.0.0.1:1/ledger: " in str(failed.value)
    assert "sesame" not in str(failed.value)


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match="refused a statement"):
        Ledger(str(path)).find()


# ---- concurrent submitters ------------------------------------------------------------------------


def rivals(place: str, seed: int, names: list[str], starts: Any, settles: bool) -> list[tuple[str, int | None]]:
    """One of several submitters: of each team in turn it reserves, and settles below its bound; what it got."""
    draw, ledger, got = random.Random(seed), Ledger(place), []
    for turn, team in enumerate(names):
        starts.wait(60)
        for number in range(2):
            id, bound = f"{turn}-{seed}-{number}", draw.randint(1, 60)
            try:
                ledger.reserve(wanted(id, bound, team=team))
            except BudgetError:
                got.append((team, -bound))
                continue
            got.append((team, bound))
            if settles and draw.random() < 0.5:
                ledger.settle(id, cost(draw.randint(0, bound)), NOVEMBER)
    return got


def never_overspent(place: str, interleavings: int, submitters: int) -> tuple[int, int]:
    """Real processes against a limit of 100 a team; how many submissions were admitted and refused."""
    ledger, names = Ledger(place), [f"t{number}" for number in range(interleavings)]
    limits = (f"('team', '{name}', 100, 'total', 'bo', 0, {number})" for number, name in enumerate(names))
    with ledger._database.transaction() as execute:
        execute(f"INSERT INTO limits (scope, name, amount, period, person, made, number) VALUES {', '.join(limits)}")
    with multiprocessing.get_context("fork").Manager() as manager:
        starts = manager.Barrier(submitters)
        with ProcessPoolExecutor(submitters, multiprocessing.get_context("fork")) as pool:
            made = list(pool.map(rivals, [place] * submitters, range(submitters), [names] * submitters,
                                 [starts] * submitters, [False] * submitters))  # fmt: skip
    admitted, refused = dict.fromkeys(names, 0), dict[str, int]()
    for team, amount in (one for mine in made for one in mine):
        assert amount is not None
        if amount > 0:
            admitted[team] += amount
        else:
            refused[team] = min(refused.get(team, 1000), -amount)
    assert max(admitted.values()) <= 100
    # nothing settles, so what counts only grows: a refusal that would still fit at the end was wrong
    assert all(admitted[team] + least > 100 for team, least in refused.items())
    counted = dict.fromkeys(names, 0)
    for one in ledger.find():
        counted[one.team] += one.reserved or 0
    assert counted == admitted
    return sum(amount > 0 for mine in made for _, amount in mine if amount), len(refused)


def test_submitters_at_the_same_time_never_overspend(place: str) -> None:
    admitted, refused = never_overspent(place, 12, 4)
    assert admitted > 12
    assert refused > 6


@pytest.mark.exhaustive
def test_a_thousand_interleavings_of_four_processes(place: str) -> None:
    never_overspent(place, 1000, 4)


def test_threads_that_reserve_and_settle_never_exceed_the_limit(place: str) -> None:
    """At every moment what is settled and what is reserved is within the limit, as an onlooker sees it."""
    ledger = Ledger(place)
    limited(ledger, 100, "team", "t")
    starts, over, most = threading.Barrier(3), threading.Event(), [0]

    def look() -> None:
        while not over.is_set():
            most.append(ledger.limits(NOVEMBER)[0][1])

    onlooker = threading.Thread(target=look)
    onlooker.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda seed: rivals(place, seed, ["t"] * 10, starts, True), range(3)))
    finally:
        over.set()
        onlooker.join()
    assert 0 < max(most) <= 100


Asked = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 60), st.floats(0, 1), st.booleans()), max_size=12
)  # fmt: skip


@given(asked=Asked, limit=st.integers(0, 150))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_ledger_agrees_with_a_list(asked: list[tuple[str, int, float, bool]], limit: int, tmp_path: Path) -> None:
    """Against the plainest model: a dictionary of what each run may cost or has cost."""
    place = tmp_path / "one.sqlite"
    place.unlink(missing_ok=True)
    ledger, model, opened = Ledger(str(place)), dict[str, int](), dict[str, str]()
    limited(ledger, limit)
    for number, (run, bound, share, settled) in enumerate(asked):
        id, earlier = f"{number}", opened.get(run)
        spent = round(share * model[earlier]) if earlier is not None else 0
        after = {**model, **({earlier: spent} if earlier is not None else {})}
        try:
            ledger.reserve(wanted(id, bound, run=run), cost(spent) if earlier is not None else None)
            assert sum(after.values()) + bound <= limit
            model, opened[run] = {**after, id: bound}, id
        except BudgetError:
            assert sum(after.values()) + bound > limit
        if settled and run in opened:
            last = opened.pop(run)
            model[last] = round(share * model[last])
            ledger.settle(last, cost(model[last]), NOVEMBER)
        assert ledger.limits(NOVEMBER)[0][1] == sum(model.values())
