"""What a run loop refuses: everything whose outcome depends on the world outside the run.

Every method of asyncio's loop interface that would reach for a socket, a thread, a process, a file or a
signal is named here and raises `NotInWorkflow` with the name that users know it by. It has no effect besides.
"""

import asyncio
from typing import Any, NoReturn

from kagzi.sdk.loop.errors import DO_THIS_IN_A_STEP, NotInWorkflow

_WORKER_DRIVES = "the worker drives this loop; await what you need"
_NO_THREADS = (
    "no other thread may wake a run, because the moment would differ in replay; do the threaded work in a "
    "step and await it, or send the run a signal"
)


def _refused(call: str, instead: str = DO_THIS_IN_A_STEP) -> Any:
    # Any, because each stands for a method of another signature.
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotInWorkflow(call, instead)

    return refuse


class Refusals(asyncio.AbstractEventLoop):
    """The part of the loop interface that workflow code cannot have."""

    run_in_executor = _refused("loop.run_in_executor() (asyncio.to_thread)")
    set_default_executor = _refused("loop.set_default_executor()")
    shutdown_default_executor = _refused("loop.shutdown_default_executor()")
    call_soon_threadsafe = _refused("loop.call_soon_threadsafe()", _NO_THREADS)

    getaddrinfo = _refused("loop.getaddrinfo()")
    getnameinfo = _refused("loop.getnameinfo()")
    create_connection = _refused("loop.create_connection() (asyncio.open_connection)")
    create_server = _refused("loop.create_server() (asyncio.start_server)")
    create_unix_connection = _refused("loop.create_unix_connection() (asyncio.open_unix_connection)")
    create_unix_server = _refused("loop.create_unix_server() (asyncio.start_unix_server)")
    create_datagram_endpoint = _refused("loop.create_datagram_endpoint()")
    connect_accepted_socket = _refused("loop.connect_accepted_socket()")
    start_tls = _refused("loop.start_tls()")
    sendfile = _refused("loop.sendfile()")

    sock_accept = _refused("loop.sock_accept()")
    sock_connect = _refused("loop.sock_connect()")
    sock_recv = _refused("loop.sock_recv()")
    sock_recv_into = _refused("loop.sock_recv_into()")
    sock_recvfrom = _refused("loop.sock_recvfrom()")
    sock_recvfrom_into = _refused("loop.sock_recvfrom_into()")
    sock_sendall = _refused("loop.sock_sendall()")
    sock_sendfile = _refused("loop.sock_sendfile()")
    sock_sendto = _refused("loop.sock_sendto()")
    add_reader = _refused("loop.add_reader()")
    add_writer = _refused("loop.add_writer()")
    remove_reader = _refused("loop.remove_reader()")
    remove_writer = _refused("loop.remove_writer()")

    connect_read_pipe = _refused("loop.connect_read_pipe()")
    connect_write_pipe = _refused("loop.connect_write_pipe()")
    subprocess_exec = _refused("loop.subprocess_exec() (asyncio.create_subprocess_exec)")
    subprocess_shell = _refused("loop.subprocess_shell() (asyncio.create_subprocess_shell)")
    add_signal_handler = _refused("loop.add_signal_handler()")
    remove_signal_handler = _refused("loop.remove_signal_handler()")

    run_forever = _refused("loop.run_forever()", _WORKER_DRIVES)
    run_until_complete = _refused("loop.run_until_complete()", _WORKER_DRIVES)
    stop = _refused("loop.stop()", _WORKER_DRIVES)
    close = _refused("loop.close()", _WORKER_DRIVES)
    set_task_factory = _refused("loop.set_task_factory()", "the tasks of a run are made by its loop, in one order")
