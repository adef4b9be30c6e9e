"""The phases of one run, from whatever the server says is on record: what is asked, in which order, and how it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import kagzi
from kagzi import (
    Absent,
    Applied,
    Automation,
    MutateContext,
    NeedsAttention,
    NextContext,
    NotApplied,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Transient,
    Unclear,
    mutation,
)
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import SLEEP, STEP_COMPLETED, STEP_RUNNING, ErrorDetail, Step
from tests.automations_sdk.declared import inbox
from tests.automations_sdk.stage import NOW_US, Stage, event, plain, row

ONE_MAIL = pb.PeekedEvents(events=[event("email.received", "7", {"from": "Ann"})])
PREPARED = pb.PreparedWork(
    reserve=[pb.EventSelection(topic="t", event_ids=["7"])], data=plain({"from": "Ann"}), title="Add a row"
)


class Outside:
    """What a tool did, and what its reconciler says."""

    def __init__(self, says: Any = None, raises: BaseException | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.outcomes: list[Outcome] = []
        outside = self

        @mutation
        async def change(what: str) -> int:
            outside.calls.append((kagzi.idempotency_key(), what))
            if raises is not None:
                raise raises
            return 42

        if says is not None:

            @change.reconcile
            async def _(key: str, what: str) -> Any:
                outside.asked.append((key, what))
                if isinstance(says, Exception):
                    raise says
                return says

        self.change = change
        self.automation = Automation("x", accepts=["t"])

        @self.automation.consumer(subscribe="t")
        class Act:
            async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
                return Prepared(reserve={"t": ["7"]}, data={"from": "Ann"})

            async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
                await ctx.mutate(change, prepared.data["from"])

            async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
                outside.outcomes.append(outcome)

    def row(self, status: pb.MutationStatus.ValueType, **changes: Any) -> pb.Mutation:
        begin = pb.BeginMutation(
            mutation_id="m", tool="change", idempotency_key="k", parameters=plain({"what": "Ann"}), has_reconciler=True
        )
        return row(begin, status=status, **changes)


async def test_a_producer_commits_what_it_published_with_its_new_state() -> None:
    stage = Stage()
    await stage.play(inbox(), "poll", kind=pb.HANDLER_PRODUCER, state=plain({"cursor": 4}))
    assert stage.names == ["commit_handler"]
    commit = stage.body("commit_handler")
    assert commit.step.step_id == "produce"
    [registered], [published] = commit.inputs, commit.publishes
    assert (registered.key.source, registered.key.id, registered.title) == ("gmail", "1", "Email from Ann")
    assert (list(published.topics), published.event_id, published.input) == (["email.received"], "1", registered.key)
    assert (published.payload, commit.state) == (plain_json(b'{"from":"Ann"}'), plain_json(b'{"cursor":5}'))


def plain_json(data: bytes) -> Any:
    return type(plain(None))(data=data)


async def test_a_consumer_goes_through_its_phases_in_their_order() -> None:
    stage = Stage(peek_events=ONE_MAIL)
    await stage.play(inbox(), "AddRow")
    assert stage.names == ["peek_events", "commit_prepare", "begin_mutation", "finish_mutation", "commit_handler"]
    prepared = stage.body("commit_prepare").prepared
    assert [(each.topic, list(each.event_ids)) for each in prepared.reserve] == [("email.received", ["7"])]
    assert prepared.title == "Add a row"
    finish = stage.body("finish_mutation")
    assert (finish.verdict, finish.result.data) == (pb.FinishMutation.VERDICT_APPLIED, b"8")
    assert stage.body("commit_handler").publishes[0].event_id == "row-8"
    steps = [body.step for name, body in stage.sent if name != "peek_events"]
    assert [(step.step_id, step.position) for step in steps] == [
        ("prepare", 1),
        ("mutate", 2),
        ("mutate", 2),
        ("next", 3),
    ]
    assert [step.completed_seq for step in steps] == [1, 0, 2, 3]


async def test_a_consumer_that_wants_nothing_mutates_nothing_and_is_committed_all_the_same() -> None:
    stage = Stage()
    await stage.play(inbox(), "AddRow")
    assert stage.names == ["peek_events", "commit_prepare", "commit_handler"]


async def test_a_mutate_that_asks_for_nothing_is_an_outcome_of_none() -> None:
    outcomes = []
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Look:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"t": ["7"]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None: ...

        def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> dict[str, int]:
            outcomes.append(outcome)
            return {"seen": (ctx.state or {}).get("seen", 0) + 1}

    stage = Stage()
    await stage.play(automation, "Look", state=plain({"seen": 1}))
    assert stage.names == ["commit_prepare", "step_completed", "commit_handler"]
    assert outcomes == [Outcome("none")]
    assert stage.body("commit_handler").state.data == b'{"seen":2}'


async def test_prepare_runs_again_while_something_it_wanted_is_gone() -> None:
    answers = iter([pb.PrepareCommitted(not_pending=[pb.EventSelection(topic="email.received", event_ids=["7"])])])
    stage = Stage(peek_events=ONE_MAIL, commit_prepare=lambda _: next(answers, pb.PrepareCommitted()))
    await stage.play(inbox(), "AddRow")
    commits = [body.step for name, body in stage.sent if name == "commit_prepare"]
    assert [(step.attempt_number, step.position) for step in commits] == [(1, 1), (2, 1)]
    assert len({step.attempt_id for step in commits}) == 2


async def test_a_prepare_that_never_gets_what_it_wants_is_tried_again_later() -> None:
    gone = pb.PrepareCommitted(not_pending=[pb.EventSelection(topic="email.received", event_ids=["7"])])
    stage = Stage(peek_events=ONE_MAIL, commit_prepare=gone)
    await stage.play(inbox(), "AddRow")
    assert stage.names.count("commit_prepare") == 10
    assert stage.body("fail").fault == pb.FAULT_TRANSIENT


async def test_what_is_prepared_already_is_not_prepared_again() -> None:
    outside = Outside()
    stage = Stage()
    prepare = Step(step_id="prepare", position=1, completed_seq=1, attempt_number=1, status=STEP_COMPLETED)
    await stage.play(outside.automation, "Act", prepare, phase=pb.PHASE_PREPARED, prepared=PREPARED)
    assert stage.names == ["begin_mutation", "finish_mutation", "commit_handler"]
    assert stage.body("begin_mutation").step.position == 2
    assert stage.body("finish_mutation").step.completed_seq == 2
    assert [what for _, what in outside.calls] == ["Ann"]


async def test_the_tool_reads_the_key_that_is_in_the_ledger() -> None:
    outside = Outside()
    stage = Stage()
    await stage.play(outside.automation, "Act", prepared=PREPARED)
    assert outside.calls == [(stage.body("begin_mutation").idempotency_key, "Ann")]


async def test_a_tool_that_another_attempt_may_have_called_is_not_called() -> None:
    outside = Outside(says=Applied(7))
    stage = Stage(begin_mutation=lambda begin: pb.MutationBegun(may_call=False, mutation=row(begin)))
    await stage.play(outside.automation, "Act", prepared=PREPARED)
    assert outside.calls == []
    assert len(outside.asked) == 1
    assert outside.outcomes == [Outcome("applied", 7)]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(pb.MUTATION_APPLIED, Outcome("applied", 42)), (pb.MUTATION_SKIPPED, Outcome("skipped"))],
)
async def test_a_mutation_that_is_settled_leads_to_next(status: pb.MutationStatus.ValueType, outcome: Outcome) -> None:
    outside = Outside()
    stage = Stage()
    changes = {"result": plain(42)} if status == pb.MUTATION_APPLIED else {}
    await stage.play(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(status, **changes))
    assert stage.names == ["commit_handler"]
    assert (outside.calls, outside.outcomes) == ([], [outcome])


async def test_a_mutation_in_flight_is_reconciled_and_never_called() -> None:
    outside = Outside(says=Applied(42))
    stage = Stage()
    mutate = Step(step_id="mutate", position=2, attempt_number=1, status=STEP_RUNNING)
    await stage.play(outside.automation, "Act", mutate, prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    assert stage.names == ["finish_mutation", "commit_handler"]
    finish = stage.body("finish_mutation")
    assert (finish.step.step_id, finish.step.position, finish.from_reconciler) == ("reconcile", 3, True)
    assert (outside.calls, outside.asked) == ([], [("k", "Ann")])
    assert outside.outcomes == [Outcome("applied", 42)]


async def test_an_absent_mutation_ends_the_run_as_transient() -> None:
    outside = Outside(says=Absent)
    stage = Stage()
    await stage.play(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    assert stage.names == ["finish_mutation", "fail"]
    assert stage.body("finish_mutation").verdict == pb.FinishMutation.VERDICT_NOT_APPLIED
    assert stage.body("fail").fault == pb.FAULT_TRANSIENT


@pytest.mark.parametrize("says", [Unclear(), RuntimeError("the outside is away"), "perhaps"])
async def test_without_an_answer_the_run_waits_durably_and_asks_again(says: Any) -> None:
    outside = Outside(says=says)
    stage = Stage()
    await stage.play(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    assert stage.names == ["finish_mutation", "step_started", "suspend"]
    timer = stage.body("step_started")
    assert (timer.step_id, timer.kind, timer.wake_at_us) == ("check", SLEEP, NOW_US + 10_000_000)
    assert list(stage.body("suspend").step_ids) == ["check"]


async def test_a_check_whose_time_has_come_is_closed_and_the_reconciler_asked_once_more() -> None:
    outside = Outside(says=Unclear())
    stage = Stage()
    history = (
        Step(step_id="reconcile", position=1, completed_seq=1, attempt_number=1, status=STEP_COMPLETED),
        Step(step_id="check", attempt_id="a", position=2, attempt_number=1, kind=SLEEP, status=STEP_RUNNING),
    )
    mutation_row = outside.row(pb.MUTATION_IN_FLIGHT)
    mutation_row.next_check_at.FromMicroseconds(NOW_US)
    await stage.play(outside.automation, "Act", *history, prepared=PREPARED, mutation=mutation_row)
    assert stage.names == ["step_completed", "finish_mutation", "step_started", "suspend"]
    assert (stage.body("step_completed").step_id, stage.body("step_completed").attempt_id) == ("check", "a")
    assert stage.body("finish_mutation").step.step_id == "reconcile#2"
    assert stage.body("step_started").step_id == "check#2"


async def test_a_run_that_is_woken_early_goes_on_waiting_for_the_same_timer() -> None:
    outside = Outside(says=Applied(1))
    stage = Stage()
    check = Step(step_id="check", attempt_id="a", position=1, attempt_number=1, kind=SLEEP, status=STEP_RUNNING)
    mutation_row = outside.row(pb.MUTATION_IN_FLIGHT)
    mutation_row.next_check_at.FromMicroseconds(NOW_US + 60_000_000)
    await stage.play(outside.automation, "Act", check, prepared=PREPARED, mutation=mutation_row)
    assert stage.names == ["suspend"]
    assert outside.asked == []


async def test_a_tool_without_a_reconciler_leaves_its_doubt_to_a_person() -> None:
    outside = Outside(raises=ConnectionError("reset"))
    stage = Stage(finish_mutation=pb.MutationFinished(status=pb.MUTATION_INDETERMINATE))
    await stage.play(outside.automation, "Act", prepared=PREPARED)
    assert stage.names == ["begin_mutation", "finish_mutation", "suspend"]
    assert not stage.body("begin_mutation").has_reconciler
    finish = stage.body("finish_mutation")
    assert (finish.verdict, finish.failure.type) == (pb.FinishMutation.VERDICT_UNCLEAR, "ConnectionError")
    assert '"indeterminate"' in stage.body("suspend").parked_json
    assert len(outside.calls) == 1


async def test_after_a_crash_without_a_reconciler_nothing_is_called() -> None:
    outside = Outside()
    stage = Stage(finish_mutation=pb.MutationFinished(status=pb.MUTATION_INDETERMINATE))
    await stage.play(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    assert stage.names == ["finish_mutation", "suspend"]
    assert not stage.body("finish_mutation").from_reconciler
    assert outside.calls == []


async def test_an_error_of_the_tool_is_doubt_and_the_reconciler_is_asked_at_once() -> None:
    outside = Outside(says=Applied(42), raises=TimeoutError("no answer"))
    stage = Stage()
    await stage.play(outside.automation, "Act", prepared=PREPARED)
    assert stage.names == ["begin_mutation", "finish_mutation", "finish_mutation", "commit_handler"]
    assert len(outside.calls) == len(outside.asked) == 1
    assert outside.outcomes == [Outcome("applied", 42)]


async def test_a_tool_proves_that_nothing_happened() -> None:
    outside = Outside(says=Applied(42), raises=NotApplied("the sheet is locked"))
    stage = Stage()
    await stage.play(outside.automation, "Act", prepared=PREPARED)
    assert stage.names == ["begin_mutation", "finish_mutation", "fail"]
    assert stage.body("finish_mutation").verdict == pb.FinishMutation.VERDICT_NOT_APPLIED
    fail = stage.body("fail")
    assert (fail.fault, fail.failure.message) == (pb.FAULT_TRANSIENT, "the sheet is locked")
    assert outside.asked == []


async def test_a_persons_word_that_comes_while_the_reconciler_runs_counts() -> None:
    outside = Outside(says=Unclear())
    resolved = outside.row(pb.MUTATION_APPLIED, result=plain(9))
    stage = Stage(finish_mutation=pb.MutationFinished(status=pb.MUTATION_APPLIED))
    run = stage.enter(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    run.wake([worker.Fact(mutation_resolved=resolved)])
    run.begin()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert outside.outcomes == [Outcome("applied", 9)]


async def test_a_word_that_has_not_arrived_yet_is_fetched_by_giving_the_run_back() -> None:
    outside = Outside(says=Unclear())
    stage = Stage(finish_mutation=pb.MutationFinished(status=pb.MUTATION_SKIPPED))
    await stage.play(outside.automation, "Act", prepared=PREPARED, mutation=outside.row(pb.MUTATION_IN_FLIGHT))
    assert stage.names == ["finish_mutation", "release"]


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (Transient("busy"), pb.FAULT_TRANSIENT),
        (TimeoutError("slow"), pb.FAULT_TRANSIENT),
        (NeedsAttention("log in again"), pb.FAULT_NEEDS_ATTENTION),
        (KeyError("cursor"), pb.FAULT_DEFECT),
        (asyncio.CancelledError(), pb.FAULT_DEFECT),
        (ExceptionGroup("both", [Transient("busy"), KeyError("cursor")]), pb.FAULT_DEFECT),
        (ExceptionGroup("one", [Transient("busy")]), pb.FAULT_TRANSIENT),
    ],
)
async def test_an_error_says_what_it_means_for_the_automation(
    error: BaseException, fault: pb.HandlerFault.ValueType, caplog: pytest.LogCaptureFixture
) -> None:
    automation = Automation("x")

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        source = ctx.register_input("s", "t", "1")
        ctx.publish("t", id="1", input=source)
        raise error

    stage = Stage()
    await stage.play(automation, "poll")
    assert stage.names == ["step_failed", "fail"]
    assert (stage.body("fail").fault, stage.body("fail").failed_step_id) == (fault, "produce")
    [told] = [each for each in caplog.records if each.name == "kagzi.automation.x.poll"]
    assert told.getMessage().startswith("the run failed: ")
    assert bool(told.exc_info) == (fault == pb.FAULT_DEFECT), "where a defect is has to be seen"


async def test_a_phase_that_takes_too_long_is_transient() -> None:
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t", timeout="10ms")
    class Slow:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            await asyncio.Event().wait()
            return Prepared()

    stage = Stage()
    await stage.play(automation, "Slow")
    assert stage.body("fail").fault == pb.FAULT_TRANSIENT


@pytest.mark.parametrize(
    ("phase", "call", "said"),
    [
        ("produce", lambda ctx: ctx.peek("t"), "only `prepare` looks"),
        ("produce", lambda ctx: ctx.mutate(print), "only `mutate` changes"),
        ("prepare", lambda ctx: ctx.publish("t", id="1"), "only producers and `next` publish"),
        ("prepare", lambda ctx: ctx.register_input("s", "t", "1"), "only producers register"),
        ("prepare", lambda ctx: ctx.mutate(print), "only `mutate` changes"),
        ("mutate", lambda ctx: ctx.get("t", ["1"]), "only `prepare` reads"),
        ("mutate", lambda ctx: ctx.publish("t", id="1"), "only producers and `next` publish"),
        ("next", lambda ctx: ctx.peek("t"), "only `prepare` looks"),
        ("next", lambda ctx: ctx.mutate(print), "only `mutate` changes"),
        ("next", lambda ctx: ctx.publish("other", id="1"), "which it does not declare"),
        ("next", lambda ctx: ctx.publish("t", id=""), "the id of an event"),
        ("next", lambda ctx: ctx.publish("t", id="1", payload=object()), "Cannot encode"),
        ("next", lambda ctx: ctx.publish("t", id="1", payload="x" * 2_100_000), "too large"),
        ("produce", lambda ctx: ctx.publish("t", id="1", input=None), "what it came from"),
        ("prepare", lambda ctx: ctx.peek("other"), "which it does not declare"),
        ("prepare", lambda ctx: ctx.peek("t", limit=1_001), "1 to 1000"),
    ],
)
async def test_what_a_phase_may_not_do_is_a_defect_that_names_the_handler_and_the_rule(
    phase: str, call: Any, said: str
) -> None:
    async def do(ctx: Any, here: str) -> None:
        if here == phase:
            given = call(ctx)
            if given is not None:
                await given

    automation = Automation("x")

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        await do(ctx, "produce")

    @automation.consumer(subscribe="t", publishes="t")
    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            await do(ctx, "prepare")
            return Prepared(reserve={"t": ["7"]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await do(ctx, "mutate")

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            await do(ctx, "next")

    stage = Stage()
    await stage.play(automation, "poll" if phase == "produce" else "Act")
    fail = stage.body("fail")
    assert fail.fault == pb.FAULT_DEFECT
    assert said in fail.failure.message
    assert "commit_handler" not in stage.names
    if "Cannot encode" not in said and "too large" not in said:
        assert "'poll'" in fail.failure.message or "'Act'" in fail.failure.message


async def test_a_second_mutation_is_refused_before_the_first_has_happened() -> None:
    outside = Outside()
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Twice:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"t": ["7"]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(outside.change, "one")
            await ctx.mutate(outside.change, "two")

    stage = Stage()
    await stage.play(automation, "Twice")
    assert stage.names == ["commit_prepare", "step_failed", "fail"]
    assert "A second ctx.mutate in the mutate phase of 'Twice'" in stage.body("fail").failure.message
    assert outside.calls == []


async def test_a_context_is_over_with_its_phase() -> None:
    kept: list[NextContext] = []
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t", publishes="u")
    class Keep:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared()

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            kept.append(ctx)

    await Stage().play(automation, "Keep")
    with pytest.raises(kagzi.errors.ConfigError, match="phase of 'Keep' is over"):
        kept[0].publish("u", id="1")


async def test_what_a_phase_keeps_in_self_another_does_not_see() -> None:
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Forgetful:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            self.kept = 1
            return Prepared()

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            assert not hasattr(self, "kept")

    stage = Stage()
    await stage.play(automation, "Forgetful")
    assert stage.names[-1] == "commit_handler"


async def test_a_refused_commit_fails_the_run_with_the_servers_words() -> None:
    refusal = ErrorDetail(code=ErrorDetail.LIMIT_EXCEEDED, message="the state is too large", field="state")
    stage = Stage(commit_handler=refusal)
    await stage.play(inbox(), "poll")
    assert stage.names == ["commit_handler", "step_failed", "fail"]
    assert "the state is too large" in stage.body("fail").failure.message
    assert stage.body("fail").fault == pb.FAULT_DEFECT


async def test_too_much_at_once_is_not_sent() -> None:
    automation = Automation("x")

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        for number in range(3):
            source = ctx.register_input("s", "t", str(number))
            ctx.publish("t", id=str(number), payload="x" * 1_500_000, input=source)

    stage = Stage()
    await stage.play(automation, "poll")
    assert stage.names == ["step_failed", "fail"]
    assert "to store at once" in stage.body("fail").failure.message


async def test_a_lost_lease_ends_the_run_in_silence() -> None:
    stage = Stage(commit_handler=ErrorDetail(code=ErrorDetail.LEASE_LOST, message="somebody else's"))
    await stage.play(inbox(), "poll")
    assert stage.names == ["commit_handler"]


async def test_a_cancel_ends_a_run_where_it_stands_and_not_a_tool_under_way() -> None:
    began, let_go = asyncio.Event(), asyncio.Event()

    @mutation
    async def slow() -> None:
        began.set()
        await let_go.wait()

    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            began.set()
            await asyncio.Event().wait()
            return Prepared()

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(slow)

    stage = Stage()
    run = stage.enter(automation, "Act")
    run.begin()
    await began.wait()
    run.cancel(worker.CancelRequested(reason="enough"))
    await asyncio.wait_for(stage.over.wait(), 10)
    assert (stage.names, stage.body("fail").failure.message) == (["fail"], "enough")

    began.clear()
    stage = Stage()
    run = stage.enter(automation, "Act", prepared=PREPARED)
    run.begin()
    await began.wait()
    run.cancel(worker.CancelRequested(reason="enough"))
    await asyncio.sleep(0)
    assert stage.names == ["begin_mutation"]
    let_go.set()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert stage.names == ["begin_mutation", "finish_mutation", "fail"]


async def test_a_run_that_was_cancelled_before_it_came_does_nothing() -> None:
    stage = Stage()
    cancel = worker.Fact(cancel_requested=worker.CancelRequested(reason="enough"))
    await stage.play(inbox(), "poll", facts=(cancel,))
    assert stage.names == ["fail"]


async def test_a_worker_that_stops_gives_the_run_back() -> None:
    automation = Automation("x")
    began = asyncio.Event()

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    stage = Stage()
    run = stage.enter(automation, "poll")
    run.begin()
    await began.wait()
    run.interrupt()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert stage.names == ["release"]


async def test_a_run_of_somebody_elses_sends_nothing() -> None:
    automation = Automation("x")
    began = asyncio.Event()

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    stage = Stage()
    run = stage.enter(automation, "poll")
    run.begin()
    await began.wait()
    run.drop()
    await asyncio.wait_for(stage.over.wait(), 10)
    await asyncio.sleep(0)
    assert stage.sent == []


async def test_an_ordinary_run_of_the_handlers_type_is_told_what_to_do_instead() -> None:
    automation = inbox()
    delivery = worker.Delivery(run_id="r", claim_token="t", workflow_type="email-to-sheets.poll")
    stage = Stage()
    [served, *_] = automation.served()
    run = served.execute(delivery, stage)
    run.begin()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert stage.names == ["fail"]
    assert "run_now" in stage.body("fail").failure.message


async def test_what_does_not_fit_into_one_frame_is_asked_for_again() -> None:
    pages = {
        "": pb.PeekedEvents(events=[event("t", "1")], next_cursor="c"),
        "c": pb.PeekedEvents(events=[event("t", "2"), event("t", "3")]),
    }
    seen: list[Any] = []
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Look:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            seen.append([each.id for each in await ctx.peek("t", limit=10)])
            seen.append([each.id for each in await ctx.get("t", ["2", "9", "1"])])
            seen.append(ctx.now())
            return Prepared()

    stage = Stage(
        peek_events=lambda asked: pages[asked.cursor],
        get_events=lambda asked: (
            pb.GotEvents(events=[event("t", "2")], missing=["9"], remaining=["1"])
            if "2" in asked.event_ids
            else pb.GotEvents(events=[event("t", "1")])
        ),
    )
    await stage.play(automation, "Look")
    assert seen[:2] == [["1", "2", "3"], ["2", "1"]]
    assert (seen[2] - datetime.fromtimestamp(NOW_US / 1e6, UTC)).total_seconds() < 5
