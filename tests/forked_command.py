"""Runs commands of the gateway, forked from a process that has imported it: importing takes a second.

As a script with the address of a server, a module and arguments, it is ``python -m`` with these: it passes
its folder, environment and open files to the server, forwards signals to the process that the server forks,
and ends with its exit code. If it is killed, so is that process.
With an address alone, it is the server, until its standard input ends.
"""

import contextlib
import json
import os
import signal
import socket
import sys

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
F_SETSIG = 10  # fcntl has no name for it


def run_client(address: str, arguments: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        # Not pathlib, which takes longer to import than all the rest.
        order = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109
        socket.send_fds(connection, [len(order).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(order)
        pid = int.from_bytes(connection.recv(8), "big")

        def forward_signal(number: int, _frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in FORWARDED_SIGNALS:
            signal.signal(number, forward_signal)
        code = connection.recv(8)
    if not code:  # a signal ended it
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int.from_bytes(code, "big"))


def run_server(address: str) -> None:
    import gc
    import importlib
    import pkgutil
    import select

    import gateway

    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__") and ".migrations." not in module.name:
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # a collection would write to, and so copy, shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended processes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            if 0 in select.select([listener, 0], [], [])[0]:
                return None
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.detach()
                return run_child(connection)
            connection.close()


def run_child(connection: socket.socket) -> None:
    import atexit
    import fcntl
    import runpy

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, *_ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as order:
        arguments, folder, environment = json.loads(order.read(int.from_bytes(size, "big")))
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(target, mode, buffering=1, closefd=False)
        for target, mode in enumerate(("r", "w", "w"))
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    module, *sys.argv[1:] = arguments
    connection.sendall(os.getpid().to_bytes(8, "big"))
    # The end of the client's process, also by SIGKILL, kills this one.
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    code = 1

    def end() -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        connection.sendall(code.to_bytes(8, "big"))
        os._exit(code)  # without freeing what was imported, which takes as long as many a command

    atexit.register(end)  # the last function at exit, when threads have ended and output is written
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        raise
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[2:]:
        run_client(sys.argv[1], sys.argv[2:])
    else:
        run_server(sys.argv[1])
