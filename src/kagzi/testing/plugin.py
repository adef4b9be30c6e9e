"""The pytest plugin: the fixture `kagzi_env`. Every run of pytest loads it, so it loads nothing of a server until a
test asks for an environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kagzi import testing

if TYPE_CHECKING:
    from typing import Unpack

    from kagzi.testing.harness import Environment, EnvironmentOptions

if TYPE_CHECKING or find_spec("pytest_asyncio"):
    # In its strict mode pytest-asyncio runs no other async fixtures than those it made.
    from pytest_asyncio import fixture
else:
    from pytest import fixture  # noqa: PT013 - one name for either


class Environments:
    """Makes the environments of one test: `env = await kagzi_env(workflows=[order])`. They end with the test, or with a
    block, as in `async with kagzi_env(workflows=[order]) as env`.
    """

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack

    def __call__(self, **options: Unpack[EnvironmentOptions]) -> Opening:
        """An environment with the options of `kagzi.testing.environment`."""
        return Opening(self._stack, options)


class Opening:
    """An environment that is about to begin."""

    def __init__(self, stack: contextlib.AsyncExitStack, options: EnvironmentOptions) -> None:
        self._stack = stack
        self._environment = testing.environment(**options)

    def __await__(self) -> Generator[Any, None, Environment]:
        return self._stack.enter_async_context(self._environment).__await__()

    async def __aenter__(self) -> Environment:
        return await self._environment.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._environment.__aexit__(kind, error, trace)


@fixture
async def kagzi_env() -> AsyncIterator[Environments]:
    """Environments to test workflows in: `env = await kagzi_env(workflows=[order])`."""
    async with contextlib.AsyncExitStack() as stack:
        yield Environments(stack)
