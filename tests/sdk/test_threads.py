"""Threads for sync step bodies: as many as allowed, and none that keeps a process from ending."""

import subprocess
import sys
import threading

import pytest

from kagzi.sdk.threads import Threads


def test_bodies_run_beside_each_other_up_to_the_limit_and_the_others_wait() -> None:
    threads = Threads(2)
    meet, go = threading.Barrier(3), threading.Event()

    def body() -> str:
        meet.wait(10)
        go.wait(10)
        return threading.current_thread().name

    first = [threads.submit(body) for _ in range(2)]
    third = threads.submit(lambda: threading.current_thread().name)
    meet.wait(10)
    assert not third.done()
    go.set()
    names = {future.result(10) for future in first}
    assert names == {"kagzi-step-1", "kagzi-step-2"}
    assert third.result(10) in names
    threads.shutdown()


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads(10)
    names = set()
    for _ in range(20):
        idle = threads._idle
        names.add(threads.submit(lambda: threading.current_thread().name).result(10))
        # The thread is idle a moment after its result is there.
        assert idle.acquire(timeout=10)
        idle.release()
    assert names == {"kagzi-step-1"}
    threads.shutdown()


def test_an_error_belongs_to_who_asked_and_the_thread_goes_on() -> None:
    threads = Threads(1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(10)
    assert threads.submit(lambda: 1).result(10) == 1
    threads.shutdown()
    with pytest.raises(RuntimeError, match="stopped"):
        threads.submit(lambda: 1)


def test_what_waits_can_be_cancelled() -> None:
    threads = Threads(1)
    began, go = threading.Event(), threading.Event()

    def body() -> None:
        began.set()
        go.wait(10)

    threads.submit(body)
    began.wait(10)
    waiting = threads.submit(lambda: 1)
    assert waiting.cancel()
    go.set()
    assert threads.submit(lambda: 2).result(10) == 2
    threads.shutdown()


def test_a_body_that_never_ends_does_not_keep_the_process() -> None:
    code = (
        "import threading; from kagzi.sdk.threads import Threads; began = threading.Event(); "
        "Threads(1).submit(lambda: (began.set(), threading.Event().wait())); began.wait(10)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0
