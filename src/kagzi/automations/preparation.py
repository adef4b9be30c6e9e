"""What `prepare` decided, on its way to the server. `mutate` only computes what is to be changed, so it need not wait
until that is stored, and its request leaves in the same frame; nothing is called outside, and no `next` runs, before
the server has stored both. If something that was wanted is gone by then, all of it is computed anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.automations.prepared import Prepared
from kagzi.automations.records import Record
from kagzi.protocol.v1 import automation_pb2 as pb

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun, Posted


class Gone(Exception):
    """Something that `prepare` wanted is no longer pending: nothing was reserved, and it runs again."""


class Preparation:
    """A decision that is sent once, at the latest when somebody asks whether it is stored."""

    __slots__ = ("_commit", "_posted", "_record", "_run", "_stored", "work")

    def __init__(self, run: HandlerRun, record: Record, commit: pb.CommitPrepare, work: Prepared) -> None:
        run.require_room("commit_prepare", commit)
        self._run = run
        self._record = record
        self._commit = commit
        self._posted: Posted | None = None
        self._stored = False
        # What the phases behind it get.
        self.work = work

    def send(self) -> None:
        """Lets it leave."""
        if self._posted is None:
            self._posted = self._run.post("commit_prepare", self._commit)

    async def stored(self) -> None:
        """Returns when it is durable. Raises Gone, or the ServerError that a refusal means."""
        if self._stored:
            return
        self.send()
        assert self._posted is not None
        try:
            answer = await self._run.answer(self._posted)
        except Exception:
            # What failed is `prepare`, whichever phase runs by now.
            self._run.open = self._record
            raise
        if answer.prepare_committed.not_pending:
            raise Gone
        self._stored = True
