"""The guarantees as invariants of a state machine: clients, three workers and a moving clock do whatever comes to mind,
over two servers, with answers lost and operations repeated; after every step the database stands as the model says.
`make model` runs many more examples than `make check`, and other ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from math import inf
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kagzi.protocol.v1.common_pb2 import REJECT, REPLACE, RetryPolicy, RunStatus
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest
from kagzi.store import forks, resolutions, workers
from kagzi.store.forks import Forked
from kagzi.store.operation import Kind, Operation, Outcome, Slot
from tests.database import Databases
from tests.laws import operations
from tests.model.expected import GIVES_AWAY, LIVE, Run, kept_by_retry
from tests.model.holder import ACTIONS, Holder
from tests.model.lab import HEARTBEAT_MS, LEASE_MS, Lab, offset

EXAMPLES = int(os.environ.get("KAGZI_TEST_EXAMPLES", "25"))
STEPS = 60
NUMBERS = st.integers(0, 7)
SERVERS = st.integers(0, 1)
HEARD = st.sampled_from([True, True, False])
TIMES = (0, 0, 400, 1_000, 5_000, 31_000)
# Some more often than others: what ends a run leaves little to look at.
TURNS = (
    *["claim"] * 5,
    *["work"] * 6,
    *["speak"] * 2,
    *["signal"] * 2,
    *["resolve"] * 2,
    *("start", "start again", "retry", "cancel", "terminate", "echo", "echo", "heartbeat", "die"),
)


@pytest.fixture(scope="module")
def lab(databases: Databases) -> Iterator[Lab]:
    url = databases.create()
    lab = Lab(url)
    yield lab
    lab.close()
    databases.drop(url)


class Engine(RuleBasedStateMachine):
    """Everything that can happen to runs."""

    lab: ClassVar[Lab]

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Run] = {}
        self.holders: list[Holder] = []
        self.starts: list[Operation] = []
        self.signals: list[Operation] = []
        self.retries: list[tuple[str, str]] = []
        self.answered: list[Operation] = []
        self.frozen: dict[str, Any] = {}

    @initialize(worker=st.integers(0, 2))
    def begin(self, worker: int) -> None:
        self.lab.begin()
        self.start("x", 0, 2, worker, 0)
        self.start("", 0, 1, None, 1)

    @rule(
        what=st.sampled_from(TURNS),
        number=NUMBERS,
        other=NUMBERS,
        server=SERVERS,
        heard=HEARD,
        actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4),
        after=st.sampled_from(TIMES),
    )
    def turn(
        self, what: str, number: int, other: int, server: int, heard: bool, actions: list[str], after: int
    ) -> None:
        """Whose turn it is. One rule, because of several Hypothesis leaves some out for a whole example."""
        match what:
            case "claim":
                self.lab.pass_time(after)
                self.claim(other % 3, 1 + number % 3, server, heard=heard)
            case "work" if self.holders:
                self.work(number, actions, server, said=heard)
            case "speak" if any(holder.outbox for holder in self.holders):
                self.speak(1 + other, number, server, heard=heard)
            case "echo" if self.answered:
                self.echo(number, server)
            case "heartbeat":
                self.heartbeat(other % 3, server)
            case "die" if self.holders:
                self.holders.pop(number % len(self.holders))
            case _:
                self._client(what, number, other, server)

    def _client(self, what: str, number: int, other: int, server: int) -> None:
        match what:
            case "start":
                name, conflict = ["", "x", "y"][number % 3], [0, REJECT, REPLACE][other % 3]
                self.start(name, conflict, 1 + other % 2, [0, 1, 2, None][number % 4], server)
            case "start again":
                self.start_again(number, server)
            case "signal":
                self.signal(number, server, again=other == 0)
            case "cancel":
                self.cancel(number, server)
            case "terminate":
                self.terminate(number, server)
            case "retry" if any(not run.live for run in self.runs.values()):
                self.retry(number, server, again=other < 2)
            case "resolve" if any("pay" in run.steps for run in self.runs.values()):
                self.resolve(number, server, ["APPLIED", "FAIL"][other % 2])

    def work(self, number: int, actions: list[str], server: int, *, said: bool) -> None:
        """A worker does something, and says so at once, later or never."""
        holder = self.holders[-1 - number % len(self.holders)]
        for action in actions:
            holder.act(action, self.lab.now)
        if said:
            self._send([holder], 9, server, heard=True)

    def claim(self, worker: int, count: int, server: int, *, heard: bool) -> None:
        # What has crashed before is claimed apart.
        for suspects in {False, any(run.crashes for run in self.runs.values())}:
            self._claim(self.lab.workers[worker], count, server, suspects=suspects, heard=heard)

    def start(self, name: str, conflict: int, tries: int, worker: int | None, server: int) -> None:
        policy = RetryPolicy(maximum_attempts=tries, initial_interval_ms=1_000) if tries > 1 else None
        start = operations.start(self.lab.new_id(), external_id=name, on_conflict=conflict, retry=policy)
        if worker is not None:
            start.slot = Slot(self.lab.workers[worker], self.lab.new_id())
        slot = start.slot
        other = next((run for run in self.runs.values() if run.live and name and run.external_id == name), None)
        [code] = self.lab.flush(server, [start])
        if other is not None and conflict != REPLACE:
            assert code == ("CONFLICT" if conflict == REJECT else "OK"), start.answer
            assert conflict == REJECT or start.answer.run_id == other.run_id  # type: ignore[union-attr]
            return
        assert code == "OK", start.answer
        assert start.answer.run_id == start.run_id  # type: ignore[union-attr]
        if other is not None:
            other.interrupt()
            other.end("CANCELLED")
        run = self.runs[start.run_id] = Run(start.run_id, name or None, tries, due=self.lab.now)
        if slot is not None and start.slot is slot:
            run.hold(slot.token, slot.worker_id, self.lab.now)
            self.holders.append(self._holder(slot.worker_id, run.run_id, slot.token))
        self.starts.append(start)

    def start_again(self, number: int, server: int) -> None:
        again = copy(self.starts[number % len(self.starts)])
        again.slot = None
        [code] = self.lab.flush(server, [again])
        assert code == "OK"
        assert again.answer.run_id == again.run_id  # type: ignore[union-attr]

    def _claim(self, worker: str, count: int, server: int, *, suspects: bool, heard: bool) -> None:
        now = self.lab.now
        due = sorted(
            (run for run in self.runs.values() if run.claimable(now) and (run.crashes > 0) == suspects),
            key=lambda run: run.due or 0,
        )
        deliveries = {one.run_id: one for one in self.lab.claim(server, worker, count, suspects=suspects)}
        assert deliveries.keys() <= {run.run_id for run in due}, "somebody got a run that was not due"
        stored = {row["run_id"]: row for row in self.lab.stored()[0]} if len(due) > len(deliveries) else {}
        taken = [run for run in due if run.run_id in deliveries or stored[run.run_id]["status"] == "FAILED"]
        assert len(taken) == min(count, len(due)), "a run that was due, and a place for it, were not brought together"
        left = [run.due or 0 for run in due if run not in taken]
        assert not left or min(left) >= max(run.due or 0 for run in taken), "a younger run was taken first"
        for run in taken:
            delivery = deliveries.get(run.run_id)
            kept = run.take(delivery.claim_token if delivery else "", worker, now)
            assert kept == (delivery is not None), "poisoned too early or too late"
            if delivery is not None:
                self._check_delivery(run, delivery)
                if heard:
                    holder = self._holder(worker, run.run_id, delivery.claim_token)
                    holder.learn(delivery)
                    self.holders.append(holder)

    def _check_delivery(self, run: Run, delivery: Any) -> None:
        """Every replay sees the same bytes, and every fact that is not on record."""
        seen = {step.step_id: step.output.data for step in delivery.history if step.output.data}
        assert seen == {name: step.output for name, step in run.steps.items() if step.output}
        told = [fact.signal.signal_id for fact in delivery.facts if fact.HasField("signal")]
        assert told == [signal for signal, by in run.signals if by is None]
        assert any(fact.HasField("cancel_requested") for fact in delivery.facts) == run.cancelled

    def _holder(self, worker: str, run_id: str, token: str) -> Holder:
        return Holder(worker, operations.Run(run_id, token), self.lab.new_id)

    def speak(self, most: int, first: int, server: int, *, heard: bool) -> None:
        """What some workers have to say reaches a server in one batch; its answers may be lost."""
        at = first % len(self.holders)
        senders = [holder for holder in [*self.holders[at:], *self.holders[:at]] if holder.outbox][:3]
        self._send(senders, most, server, heard=heard)

    def _send(self, senders: list[Holder], most: int, server: int, *, heard: bool) -> None:
        sent = [(holder, operation) for holder in senders for operation in holder.outbox[:most]]
        codes = self.lab.flush(server, [copy(operation) for _, operation in sent])
        fallen: set[int] = set()
        for (holder, operation), code in zip(sent, codes, strict=True):
            expected = self._expect(operation, code)
            if id(holder) in fallen:
                assert code in ("PREDECESSOR_REFUSED", "LEASE_LOST"), f"{operation.kind.name}: {code}"
            else:
                assert code == expected, f"{operation.kind.name}: {code}, expected {expected}"
            if code != "OK":
                fallen.add(id(holder))
            if heard:
                holder.outbox.remove(operation)
                if code == "OK":
                    self.answered.append(operation)
                else:
                    holder.gone = True
        for holder in senders:
            if heard and id(holder) in fallen:
                holder.outbox.clear()

    def _expect(self, operation: Operation, code: str) -> str:
        run = self.runs[operation.run_id]
        if self._on_record(operation, run):
            return "OK"
        if code == "PREDECESSOR_REFUSED":
            return code
        expected = run.apply(operation, self.lab.now)
        if expected == "OK" and operation.kind not in GIVES_AWAY:
            run.accepted.add(_known_by(operation))
        return expected

    def _on_record(self, operation: Operation, run: Run) -> bool:
        """Whether it took effect before and is known by its id."""
        if operation.kind in GIVES_AWAY:
            return run.last is not None and run.last == operation.operation_id
        if _known_by(operation) in run.accepted:
            return True
        # An effect is in doubt also when its run was ended from outside; who says so afterwards says what is on record.
        known = run.steps.get(operation.body.step_id)
        doubted = known is not None and known.attempt_id == operation.body.attempt_id and known.status == "UNKNOWN"
        return doubted and operation.kind is Kind.FAIL_STEP and operation.token != run.token

    def echo(self, number: int, server: int) -> None:
        """Something that was answered long ago arrives again, and changes nothing."""
        operation = self.answered[-1 - number % len(self.answered)]
        [code] = self.lab.flush(server, [copy(operation)])
        run = self.runs[operation.run_id]
        done = run.steps.get(getattr(operation.body, "step_id", ""))
        stands = operation.kind is Kind.COMPLETE_STEP and done and done.attempt_id == operation.body.attempt_id
        if stands or (operation.kind in GIVES_AWAY and run.last == operation.operation_id):
            assert code == "OK", f"{operation.kind.name}: {code}"

    def heartbeat(self, worker: int, server: int) -> None:
        now, worker_id = self.lab.now, self.lab.workers[worker]
        mine = [one for one in self.holders if one.worker == worker_id and not (one.gone and not one.outbox)]
        pairs = [(one.run.run_id, one.run.token) for one in mine]
        answer = self.lab.transact(
            server,
            lambda c: workers.heartbeat(
                c, self.lab.namespace, worker_id, pairs, lease_ms=LEASE_MS, interval_ms=HEARTBEAT_MS
            ),
        )
        lost = {*answer.renewal.lost, *answer.renewal.ended}
        for pair in pairs:
            run = self.runs[pair[0]]
            assert (pair in lost) == (run.token != pair[1]), "a lease was renewed for somebody else, or lost"
            if run.token == pair[1]:
                run.due = now + LEASE_MS
        for run in self.runs.values():
            named = (run.run_id, run.token or "") in pairs
            if run.holder == worker_id and not named and (run.due or 0) < now + LEASE_MS - 2 * HEARTBEAT_MS:
                run.put_back(now)

    def signal(self, number: int, server: int, *, again: bool) -> None:
        repeated = again and bool(self.signals)
        sent = copy(self.signals[number % len(self.signals)]) if repeated else operations.signal(self._pick(number))
        if not repeated:
            sent.body.signal_id = self.lab.new_id()
        run = self.runs[sent.run_id]
        known = sent.body.signal_id in dict(run.signals)
        [code] = self.lab.flush(server, [sent])
        assert (code == "OK") == (run.live or known), code
        if code == "OK" and not known:
            run.signals.append((sent.body.signal_id, None))
            self.signals.append(sent)
            waits = run.steps.get("receive-paid")
            if waits is not None and waits.status == "RUNNING":
                run.wakes(self.lab.now)

    def _pick(self, number: int) -> str:
        return list(self.runs)[-1 - number % len(self.runs)]

    def cancel(self, number: int, server: int) -> None:
        run = self.runs[self._pick(number)]
        asked = operations.cancel(run.run_id)
        assert self.lab.flush(server, [asked]) == ["OK"]
        if run.live and not run.started:
            run.cancelled = True
            run.end("CANCELLED")
        elif run.live:
            run.cancelled = True
            if run.status != "RUNNING" and run.due is not None:
                run.due = min(run.due, self.lab.now)
        self._told(asked, run)

    def terminate(self, number: int, server: int) -> None:
        run = self.runs[self._pick(number)]
        asked = operations.terminate(run.run_id)
        assert self.lab.flush(server, [asked]) == ["OK"]
        if run.live:
            run.end("CANCELLED")
            run.interrupt()
        self._told(asked, run)

    def _told(self, asked: Operation, run: Run) -> None:
        """The caller was told what became of the run."""
        assert RunStatus.Name(asked.answer.status) == run.status  # type: ignore[union-attr]

    def retry(self, number: int, server: int, *, again: bool) -> None:
        ended = [run for run in self.runs.values() if not run.live]
        source, new_id = ended[number % len(ended)], self.lab.new_id()
        if again and self.retries:
            run_id, new_id = self.retries[number % len(self.retries)]
            source = self.runs[run_id]
        outcome = Outcome()
        answer = self.lab.attempt(server, lambda c: forks.retry(c, self.lab.namespace, source.run_id, new_id, outcome))
        if new_id in self.runs:
            assert isinstance(answer, Forked)
            assert answer.status == self.runs[new_id].status
            return
        kept = kept_by_retry(source) if source.status in ("FAILED", "CANCELLED") else None
        if kept is None:
            assert answer == "PRECONDITION_FAILED"
            return
        assert isinstance(answer, Forked), answer
        free = not any(run.live and run.external_id == source.external_id for run in self.runs.values())
        run = Run(new_id, source.external_id if free else None, source.tries, due=self.lab.now, steps=kept)
        received = {step.attempt_id for step in kept.values() if step.seq}
        copies = [row for row in self.lab.stored()[2] if row["run_id"] == new_id]
        assert [row["received_by"] for row in copies] == [by if by in received else None for _, by in source.signals]
        run.signals = [(row["signal_id"], row["received_by"]) for row in copies]
        run.failures = {name: 1 for name, step in kept.items() if step.status == "FAILED"}
        self.runs[new_id] = run
        self.retries.append((source.run_id, new_id))

    def resolve(self, number: int, server: int, resolution: str) -> None:
        found = [run for run in self.runs.values() if "pay" in run.steps]
        run = found[number % len(found)]
        step = run.steps["pay"]
        request = ResolveStepRequest(
            run_id=run.run_id,
            step_id="pay",
            resolution=ResolveStepRequest.Resolution.Value(resolution),
            resolution_id=self.lab.new_id(),
        )
        answer = self.lab.attempt(server, lambda c: resolutions.resolve(c, self.lab.namespace, request, Outcome()))
        if step.status == "UNKNOWN" and step.resolution is None:
            assert not isinstance(answer, str), answer
            step.resolution = resolution
            run.wakes(self.lab.now)
        else:
            assert answer == "PRECONDITION_FAILED", "a step was resolved twice, or one whose outcome is known"

    @invariant()
    def stands_as_promised(self) -> None:
        runs, steps, signals = self.lab.stored()
        assert {row["run_id"] for row in runs} == self.runs.keys(), "a run was lost, or made twice"
        for row in runs:
            run = self.runs[row["run_id"]]
            due = inf if row["waits"] else offset(row["due"])
            found = (row["status"], row["token"], row["holder"], due, row["crashes"], row["attempts"])
            assert found == (run.status, run.token, run.holder, run.due, run.crashes, run.attempts)
            assert (row["cancelled"], row["started"]) == (run.cancelled, run.started)
            assert row["finished"] == (not run.live)
            if not run.live:
                assert self.frozen.setdefault(run.run_id, tuple(row)) == tuple(row), "what has ended changed"
        active = [row["external_id"] for row in runs if row["status"] in LIVE and row["external_id"]]
        assert len(active) == len(set(active))
        stored = {(row["run_id"], row["step_id"]): tuple(row)[2:] for row in steps}
        assert stored == {
            (run.run_id, name): (step.status, step.attempt_id, step.output, step.resolution)
            for run in self.runs.values()
            for name, step in run.steps.items()
        }
        kept = [(row["run_id"], row["signal_id"], row["received_by"]) for row in signals]
        assert kept == [
            (run.run_id, signal, by)
            for run in sorted(self.runs.values(), key=lambda run: run.run_id)
            for signal, by in run.signals
        ]


def _known_by(operation: Operation) -> tuple[Kind, str, int]:
    """What makes an operation on a step a repeat: a doubt and the failure that follows it are of one attempt."""
    return operation.kind, operation.body.attempt_id, getattr(operation.body, "outcome", 0)


@pytest.mark.timeout(60 + 10 * EXAMPLES)
def test_the_engine_does_what_the_model_says(lab: Lab) -> None:
    Engine.lab = lab
    run_state_machine_as_test(
        Engine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize="KAGZI_TEST_EXAMPLES" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
