"""The steps a run's code waits for, by what each is doing. Kept so that a turn costs what changed in it, not how many
steps are open: a run of ten thousand parallel steps takes ten thousand turns.
"""

from __future__ import annotations

from kagzi.sdk.pending import Pending, State


class Agenda:
    """Open steps. `set` is the only way from one state to another."""

    __slots__ = ("held", "new", "open", "running", "waiting")

    def __init__(self) -> None:
        self.open: dict[str, Pending] = {}
        # Asked for since the code last rested.
        self.new: list[Pending] = []
        # Bodies that may begin.
        self.waiting: list[Pending] = []
        # Those that wait for a time, a signal, a child, a person.
        self.held: dict[str, Pending] = {}
        # How many bodies run.
        self.running = 0

    def add(self, pending: Pending) -> None:
        """The code waits for a further step."""
        self.open[pending.step_id] = pending
        self.new.append(pending)

    def set(self, pending: Pending, state: State) -> None:
        """What a step is doing from now on."""
        if pending.state is State.RUNNING:
            self.running -= 1
        elif pending.state is State.HELD:
            self.held.pop(pending.step_id, None)
        pending.state = state
        if state is State.RUNNING:
            self.running += 1
        elif state is State.HELD:
            self.held[pending.step_id] = pending
        elif state is State.WAITING:
            self.waiting.append(pending)
        elif state is State.CLOSED:
            self.open.pop(pending.step_id, None)

    def take_new(self) -> list[Pending]:
        """What was asked for since the last call and is still wanted."""
        new, self.new = self.new, []
        return [pending for pending in new if pending.state is State.NEW]

    def take_waiting(self) -> list[Pending]:
        """Bodies that may begin now."""
        waiting, self.waiting = self.waiting, []
        return [pending for pending in waiting if pending.state is State.WAITING]

    def moves_by_itself(self, in_place_us: int) -> bool:
        """Whether something goes on without anybody's help: a body, or a timer so short that the server is only asked
        when it ends.
        """
        if self.running or any(pending.state is State.WAITING for pending in self.waiting):
            return True
        return any(
            pending.duration_ms is not None and pending.duration_ms * 1_000 < in_place_us
            for pending in self.held.values()
        )

    def earliest_due_us(self) -> int | None:
        """When the first wait that is bounded by time is over."""
        if not self.held:
            return None
        return min((pending.due_us for pending in self.held.values() if pending.due_us is not None), default=None)
