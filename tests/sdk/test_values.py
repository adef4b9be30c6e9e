"""Values at the edge: what cannot be read fails a run before its code begins, codecs work from end to end, and ten
thousand results come back as they were.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kagzi import Client, Compression, Context, Encryption, Retry, RunFailed, workflow
from kagzi.errors import InvalidArgument
from tests.sdk.rig import LONG, Rig, rigged

begun: list[str] = []


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    begun.clear()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


@dataclass
class Order:
    id: int
    note: str


@workflow(retry=Retry(max_attempts=3, initial="1ms"))
async def typed(ctx: Context, order: Order) -> Order:
    begun.append(ctx.run_id)
    return order


@pytest.mark.parametrize("given", [None, 5, {"id": "one", "note": ""}, {"id": 1}], ids=repr)
async def test_input_that_cannot_be_read_fails_the_run_before_its_code_begins(rig: Rig, given: Any) -> None:
    async with rig.working(typed):
        handle = await rig.client.start("typed", given)
        with pytest.raises(RunFailed) as caught:
            await handle.result(timeout=LONG)

    assert caught.value.type == "PayloadError"
    assert "Order" in caught.value.message
    assert begun == []
    assert (await handle.describe()).attempts == 1


@workflow
async def untyped(ctx: Context) -> str:
    return "fine"


async def test_a_workflow_without_input_takes_none(rig: Rig) -> None:
    async with rig.working(untyped):
        assert await rig.execute(untyped) == "fine"


SECRET = "tell nobody "
KEYS = {"one": bytes(range(32))}
OTHER_KEYS = {"one": bytes(32)}


@workflow
async def whisper(ctx: Context, word: str) -> str:
    return f"{word} softly"


@workflow
async def confide(ctx: Context, words: list[str]) -> list[str]:
    async def remember(word: str) -> str:
        return f"{word} remembered"

    if len(words) == 1:
        ctx.continue_as_new([*words, f"{SECRET}continued"])
    remembered = await ctx.step("remember", remember, words[0])
    told = await ctx.run_child("whisper", whisper, words[1])
    heard = await ctx.receive("ear", str)
    assert heard is not None
    return [remembered, told, heard]


async def everything_stored(rig: Rig) -> bytes:
    """Every value in every column of every table."""
    tables = await rig.fetch("select table_name::text from information_schema.tables where table_schema = 'kagzi'")
    values: list[bytes] = []
    for (table,) in tables:
        for row in await rig.fetch(f"select * from kagzi.{table}"):  # noqa: S608 - a name of our own
            values += [value if isinstance(value, bytes) else str(value).encode() for value in row.values()]
    return b"\n".join(values)


async def test_encrypted_values_are_nowhere_in_the_database(database_url: str) -> None:
    codecs: list[Any] = [Compression(min_size=64), Encryption(KEYS, "one")]
    words = [SECRET * 20]
    async with rigged(database_url, codecs=codecs) as rig, rig.working(confide, whisper, codecs=codecs):
        handle = await rig.client.start(confide, words)
        await handle.signal("ear", f"{SECRET}signalled")
        result = await handle.result(timeout=LONG)
        stored = await everything_stored(rig)
        continued = (await handle.describe()).continued_as
        assert continued is not None
        output = next(step.output for step in await rig.client.handle(continued).steps())

    assert result == [f"{words[0]} remembered", f"{SECRET}continued softly", f"{SECRET}signalled"]
    assert b"whisper" in stored
    assert b"aes256gcm" in stored
    assert b"zlib" in stored
    assert SECRET.strip().encode() not in stored
    assert output == result[0]


@workflow(retry=Retry(max_attempts=3, initial="1ms"))
async def sealed(ctx: Context, word: str) -> str:
    begun.append(word)
    return word


@workflow
async def inner(ctx: Context, word: str) -> str:
    return f"{word} from within"


@workflow
async def outer(ctx: Context) -> list[Any]:
    made = await ctx.step("make", whispered, "made")
    told = await ctx.receive("tell", str)
    return [made, told, await ctx.run_child("child", inner, "a word"), await ctx.receive("go", str)]


async def whispered(word: str) -> str:
    return word


async def test_what_signals_and_children_gave_is_read_and_changed_through_the_codecs(database_url: str) -> None:
    codecs: list[Any] = [Encryption(KEYS, "one")]
    async with rigged(database_url, codecs=codecs) as rig, rig.working(outer, inner, codecs=codecs):
        handle = await rig.client.start(outer)
        await handle.signal("tell", "told")
        await rig.until("select 1 from kagzi.step_runs where run_id = $1 and step_id = 'go'", handle.run_id)
        shown = {step.step_id: step.output for step in await handle.steps()}
        outputs = {"make": "made up", "tell": "told otherwise", "child": "a changeling"}
        forked = await handle.fork("go", outputs=outputs)
        await forked.signal("go", "gone")
        assert await forked.result(timeout=LONG) == ["made up", "told otherwise", "a changeling", "gone"]
    assert shown == {"make": "made", "tell": "told", "child": "a word from within", "go": None}


async def test_only_steps_that_give_a_value_are_given_another(rig: Rig) -> None:
    @workflow
    async def timely(ctx: Context) -> None:
        ctx.now()
        await ctx.receive("go")

    async with rig.working(timely):
        handle = await rig.client.start(timely)
        await rig.sleeping(handle)
        with pytest.raises(InvalidArgument, match=r"'\$now', which is a NOW and gives its run no value"):
            await handle.fork("go", outputs={"$now": 7})


@pytest.mark.parametrize(
    ("codecs", "message"),
    [([], "'aes256gcm', which is missing here"), ([Encryption(OTHER_KEYS, "one")], "key")],
    ids=["without the codec", "with another key"],
)
async def test_a_worker_that_cannot_decrypt_fails_the_run_before_its_code_begins(
    rig: Rig, codecs: list[Any], message: str
) -> None:
    async with rig.working(sealed, codecs=codecs), Client(rig.address, codecs=[Encryption(KEYS, "one")]) as client:
        handle = await client.start(sealed, "secret")
        with pytest.raises(RunFailed, match=message) as caught:
            await handle.result(timeout=LONG)

    assert caught.value.type == "PayloadError"
    assert begun == []


COUNT, WIDTH = 10_000, 100
SQUARES = [number * number for number in range(COUNT)]


async def square(number: int) -> int:
    begun.append("square")
    return number * number


@workflow
async def side_by_side(ctx: Context) -> list[int]:
    results: list[int] = []
    for first in range(0, COUNT, WIDTH):
        results += await asyncio.gather(*(ctx.step("square", square, first + offset) for offset in range(WIDTH)))
    return results


async def test_ten_thousand_steps_of_one_name_give_the_right_results_live_and_in_replay(rig: Rig) -> None:
    async with rig.working(side_by_side):
        handle = await rig.client.start(side_by_side)
        assert await handle.result(timeout=LONG) == SQUARES
        assert await rig.replay(handle) == SQUARES

    (row,) = await rig.fetch("select count(*) from kagzi.step_runs where run_id = $1", handle.run_id)
    assert row["count"] == len(begun) == COUNT


@workflow
async def in_turn(ctx: Context) -> list[int]:
    return [await ctx.step("square", square, number) for number in range(COUNT + 1)]


async def test_ten_thousand_iterations_give_ten_thousand_right_results_after_a_replay(rig: Rig) -> None:
    handle = await rig.client.start(in_turn)
    # As a run would leave them behind, one commit at a time.
    await rig.fetch(
        "insert into kagzi.step_runs (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, "
        "status, kind, output) select 'default', $1, case n when 1 then 'square' else 'square#' || n end, 1, "
        "gen_random_uuid(), n, n, 'COMPLETED', 'FUNCTION', convert_to(((n - 1) * (n - 1))::text, 'utf8') "
        "from generate_series(1, $2::integer) as n",
        handle.run_id,
        COUNT,
    )
    async with rig.working(in_turn):
        assert await handle.result(timeout=LONG) == [*SQUARES, COUNT * COUNT]

    assert begun == ["square"]
