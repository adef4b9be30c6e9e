"""The SQL rules are seen to fail: each sample breaks one, and its lawful neighbour passes."""

from __future__ import annotations

import pytest

from tests.house.sqlrules import problems


def judge(statement: str) -> list[str]:
    return problems(f"-- name: sample\n-- Promises something.\n{statement};\n")


LAWFUL = {
    "an update of one row": "update k.runs set a = 1 where namespace = :namespace and run_id = :run_id",
    "an update under an alias": """
        update k.runs as r set a = u.a from unnest(:ids::uuid[], :as::int[]) as u (id, a)
        where r.namespace = :namespace::text and r.run_id = u.id returning r.run_id""",
    "the parameter first": "delete from k.runs r where :namespace = r.namespace and r.run_id = :run_id",
    "a condition in parentheses": "delete from k.runs r where (r.namespace = :namespace and r.a = 1)",
    "an or further inside": "delete from k.runs where namespace = :namespace and (a = 1 or b = 2)",
    "an insert of values": "insert into k.runs (id, namespace) values (:a, :namespace), (:b, :namespace)",
    "an insert from arrays": """
        insert into k.runs (namespace, run_id, at) select :namespace, u.id, kagzi.now()
        from unnest(:ids::uuid[]) u (id) join k.x on x.id = u.id on conflict do nothing returning run_id""",
    "an insert that may update": """
        insert into k.workers (namespace, id) values (:namespace, :id)
        on conflict (namespace, id) do update set seen_at = kagzi.now()""",
    "a lock before a write": """
        with locked as not materialized (
            select r.run_id from k.runs r where r.namespace = :namespace and r.run_id = any(:ids)
            order by r.run_id for no key update
        )
        insert into k.steps (namespace, run_id) select :namespace, u.id
        from unnest(:ids::uuid[]) u (id) join locked on locked.run_id = u.id""",
    "a lock inside a lateral probe": """
        with due as materialized (
            select r.id from unnest(:types::text[]) w (t) cross join lateral (
                select x.id from k.runs x where x.namespace = :namespace and x.wtype = w.t
                order by x.available_at limit :free for no key update skip locked
            ) r limit :free
        )
        update k.runs r set token = :token from due where r.namespace = :namespace and r.id = due.id""",
    "a lock in a join": """
        select u.id, r.status from unnest(:ids::uuid[]) u (id)
        join k.runs r on r.namespace = :namespace and r.run_id = u.id for no key update of r""",
    "a lock on one of two": """
        select r.a from k.runs r join k.payloads p on p.run_id = r.run_id
        where r.namespace = :namespace for update of r""",
    "a lock that meets a query": """
        with mine (id) as (select 1) select mine.id, r.a from mine, k.runs r
        where r.namespace = :namespace for update""",
    "a plain read across namespaces": "select namespace, count(*), a * 2 from k.runs group by namespace, a",
    "a string that only looks bad": "select 'delete from x', $$now()$$, e'it\\'s now()' -- update x set y",
    "a random id in an insert": "insert into k.x (namespace, id) values (:namespace, gen_random_uuid())",
}

UNLAWFUL = {
    "update k.runs set a = 1 where run_id = :run_id": "UPDATE of k.runs",
    "update k.runs set a = 1": "UPDATE of k.runs",
    "update k.runs set namespace = :namespace": "UPDATE of k.runs",
    "update k.runs set a = 1 where namespace = :namespace or a = 2": "UPDATE of k.runs",
    "update k.runs set a = 1 where a = 2 or b = 2 and namespace = :namespace": "UPDATE of k.runs",
    "update k.runs set a = 1 where namespace = any(:namespace)": "UPDATE of k.runs",
    "update k.runs set a = 1 where namespace <> :namespace": "UPDATE of k.runs",
    "update k.runs set a = 1 where not namespace = :namespace": "UPDATE of k.runs",
    "update k.runs set a = 1 where namespace = :namespaces": "UPDATE of k.runs",
    "update k.runs r set a = 1 from k.x x where x.namespace = :namespace": "UPDATE of k.runs",
    "update k.runs r set a = 1 where exists (select 1 from k.x where namespace = :namespace)": ("UPDATE of k.runs"),
    "with gone as (delete from k.runs where a = 1 returning a) select a from gone": "DELETE of k.runs",
    "delete from k.runs using k.x where runs.namespace = x.namespace": "DELETE of k.runs",
    "insert into k.runs (run_id) values (:run_id)": "does not name the column namespace",
    "insert into k.runs values (:namespace, :run_id)": "does not name the column namespace",
    "insert into k.runs (namespace) values (:namespace), (:other)": "does not give :namespace",
    "insert into k.runs (a, namespace) values (:namespace, :a)": "does not give :namespace",
    "insert into k.runs (namespace) values (:namespace || 'x')": "does not give :namespace",
    "insert into k.runs (namespace) select r.namespace from k.x r": "does not give :namespace",
    "insert into k.runs (namespace) select :namespace from x join y on true union select a from z": (
        "does not give :namespace"
    ),
    "insert into k.runs (namespace) default values": "does not give :namespace",
    "select a from k.runs where run_id = :run_id for update": "a lock on k.runs",
    "select a from k.runs where run_id = :run_id for no key update skip locked": "a lock on k.runs",
    "select a from k.runs where run_id = :run_id for share": "a lock on k.runs",
    "select a from k.runs where run_id = :run_id for key share nowait": "a lock on k.runs",
    "select a from k.runs where namespace = :namespace or b order by a for update": "a lock on k.runs",
    "select a is distinct from b from k.runs for update": "a lock on k.runs",
    "select r.a from k.runs r, k.x x where r.namespace = :namespace for update": "a lock on k.x",
    "select r.a from k.runs r left join k.x x on r.namespace = :namespace for update of r": ("a lock on k.runs"),
    "with runs as (select 1) select a from k.runs for update": "a lock on k.runs",
    "select s.a from (select a from k.runs) s for update": "a lock through the subquery s",
    "merge into k.runs using x on true when matched then delete": "merge cannot be held",
    "truncate k.runs": "truncate cannot be held",
    "lock table k.runs": "lock cannot be held",
    "select * from k.runs": "columns are named",
    "select r.* from k.runs r": "columns are named",
    "select a, * from k.runs r": "columns are named",
    "delete from k.runs where namespace = :namespace returning *": "columns are named",
    "update k.runs set t = gen_random_uuid() where namespace = :namespace": "gen_random_uuid() is volatile",
    "update k.runs set t = random() where namespace = :namespace": "random() is volatile",
    "update k.runs set t = clock_timestamp() where namespace = :namespace": "not clock_timestamp",
    "update k.runs set t = now() where namespace = :namespace": "not now",
    "update k.runs set t = pg_catalog.now() where namespace = :namespace": "not now",
    "with t as (select gen_random_uuid() i) update k.runs set a = i from t where namespace = :namespace": (
        "gen_random_uuid() is volatile"
    ),
    "insert into k.x (namespace) values (:namespace) on conflict (namespace) do update set a = random()": (
        "random() is volatile"
    ),
    "select a from k.runs where available_at <= current_timestamp": "not current_timestamp",
}


@pytest.mark.parametrize("statement", LAWFUL.values(), ids=LAWFUL.keys())
def test_a_lawful_statement_passes(statement: str) -> None:
    assert judge(statement) == []


@pytest.mark.parametrize(("statement", "complaint"), UNLAWFUL.items())
def test_an_unlawful_statement_is_named_with_its_fault(statement: str, complaint: str) -> None:
    found = judge(statement)
    assert len(found) == 1
    assert found[0].startswith("sample (line 1): ")
    assert complaint in found[0]


@pytest.mark.parametrize("count", [0, 6])
def test_a_query_without_one_to_five_lines_of_promise_is_refused(count: int) -> None:
    text = "-- name: sample\n" + "-- A line.\n" * count + "select 1;\n"
    assert ["one to five comment lines" in problem for problem in problems(text)] == [True]


def test_a_promise_below_the_statement_does_not_count() -> None:
    assert problems("-- name: sample\nselect 1\n-- Promises something.\n;\n") != []


def test_a_statement_without_a_name_is_refused() -> None:
    assert problems("select 1;\n") == ["a statement stands before the first `-- name:`"]


def test_a_comment_before_the_first_name_is_allowed() -> None:
    assert problems("-- About this file.\n\n-- name: sample\n-- Promises something.\nselect 1;\n") == []


def test_two_queries_of_one_name_are_refused() -> None:
    query = "-- name: sample\n-- Promises something.\nselect 1;\n"
    assert problems(query * 2) == ["two queries are named sample"]


def test_every_query_of_a_file_is_judged() -> None:
    text = "".join(f"-- name: q{number}\n-- Promises.\ndelete from k.runs;\n\n" for number in range(3))
    assert [problem.split(":")[0] for problem in problems(text)] == [
        "q0 (line 1)",
        "q1 (line 5)",
        "q2 (line 9)",
    ]


def test_a_name_without_a_statement_is_refused() -> None:
    assert problems("-- name: sample\n-- Promises something.\n") == ["sample (line 1): there is no statement"]
