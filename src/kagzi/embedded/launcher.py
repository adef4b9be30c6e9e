"""The process between us and PostgreSQL, run as a script, which makes the server end when its owner does.

A parent-death signal alone would not do: it fires when the *thread* that started the child ends, and it
needs code between fork and exec, which is unsafe in a process with threads. This process has one thread for
life. It watches its owner through a pipe and, on Linux, a pidfd, which forked children of the owner cannot
hold open, and PostgreSQL gets its own parent-death signal from here, so that it ends also when this process
is killed. It exits when the last backend is gone, never before, and it imports nothing of ours.

Arguments: pid of the owner, uid and gid to run as (-1: unchanged), directory to remove if the owner dies, and
the command. Standard input: `f` stops fast, `i` immediately, `k` kills; its end means that the owner died.
Standard output: one line, the pid of the postmaster.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

# What is sent for each command, and the seconds until the next, harder one.
_FAST = [(signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
_ORDERS = {b"f": _FAST, b"i": _FAST[1:], b"k": _FAST[2:], b"": _FAST}


def _serve(uid: int, gid: int, command: list[str], launcher: int) -> None:
    # A shell that starts us in the background leaves these ignored, and ignoring survives exec.
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if _LINUX:
        # After setuid, which clears it; the launcher may have died before it was set.
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.execv(command[0], command)  # noqa: S606  (the point of this process)


def _watch_owner(owner: int) -> int | None:
    """A descriptor that becomes readable when the owner dies, where the system has such a thing."""
    try:
        return os.pidfd_open(owner)
    except (AttributeError, OSError):
        return None


def _await_backends(pipe: int) -> None:
    # A killed postmaster leaves backends that notice when they next wait; one that computes does not.
    while not select.select([pipe], [], [], 1.0)[0]:
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
    # A process closes its files a moment before it is gone. What the postmaster left is ours to wait for.
    with contextlib.suppress(ChildProcessError):
        while _LINUX:
            os.waitpid(-1, 0)


def _supervise(postmaster: int, owner: int, woken: int) -> tuple[int, bool]:
    """Pass on orders until the postmaster ends. Gives its wait status and whether the owner died."""
    pidfd = _watch_owner(owner)
    watched = {0, woken} | ({pidfd} if pidfd is not None else set())
    # Asked after the pidfd was opened: had the owner died before, the pidfd could be that of a stranger.
    orphaned = os.getppid() != owner
    plan = list(_FAST) if orphaned else []
    due = time.monotonic()
    while True:
        reaped, status = os.waitpid(postmaster, os.WNOHANG)
        if reaped:
            return status, orphaned
        if plan and time.monotonic() >= due:
            number, patience = plan.pop(0)
            os.kill(postmaster, number)
            due = time.monotonic() + patience
        ready = select.select(watched, [], [], max(due - time.monotonic(), 0.0) if plan else None)[0]
        if woken in ready:
            os.read(woken, 64)
        order = os.read(0, 1) if 0 in ready else None
        if pidfd in ready or order == b"":
            orphaned, order = True, b""
            watched -= {0, pidfd}
        if order is not None:
            plan, due = list(_ORDERS[order]), time.monotonic()


def main() -> int:
    owner, uid, gid = (int(number) for number in sys.argv[1:4])
    scratch, command = Path(sys.argv[4]), sys.argv[5:]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    # A signal writes to the wake-up descriptor only if it has a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if _LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    backends, held = os.pipe()
    launcher = os.getpid()
    postmaster = os.fork()
    if postmaster == 0:
        # Inherited by every backend, so its other end reads as closed when the last of them is gone.
        os.set_inheritable(held, True)
        try:
            _serve(uid, gid, command, launcher)
        except OSError as error:
            os.write(2, f"could not run {command[0]}: {error}\n".encode())
        os._exit(127)
    os.close(held)
    os.write(1, f"{postmaster}\n".encode())
    status, orphaned = _supervise(postmaster, owner, woken)
    _await_backends(backends)
    if orphaned:
        with contextlib.suppress(OSError):
            for leftover in scratch.iterdir():
                leftover.unlink()
            scratch.rmdir()
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
