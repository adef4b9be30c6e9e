"""What the run loop raises into workflow code, and to the owner of a run. Each says what to do instead."""

DO_THIS_IN_A_STEP = "do this in a step: await ctx.step(name, function, ...)"


class NotInWorkflow(RuntimeError):
    """Workflow code asked its loop for something that a replay could not repeat."""

    def __init__(self, call: str, instead: str = DO_THIS_IN_A_STEP) -> None:
        super().__init__(f"{call} is not possible in workflow code, which must replay alike: {instead}")
        self.call = call
        self.instead = instead


class Spinning(RuntimeError):
    """Workflow code goes round without waiting, and would hold up every other run of its worker."""

    def __init__(self, callbacks: int) -> None:
        super().__init__(
            f"workflow code ran {callbacks} callbacks without waiting for anything: instead of polling with "
            "asyncio.sleep(0), wait for a step, a signal, a timer, or an asyncio.Event"
        )
        self.callbacks = callbacks


class Dropped(BaseException):
    """The run has left this worker's memory; its code is being closed, and nothing it does is recorded.

    Not an `Exception`, so that `except Exception` lets it pass. Code that meets it should let it pass too.
    """

    def __init__(self) -> None:
        super().__init__("this run was dropped from its worker's memory; let this exception pass")
