"""Runs gateways with mutants, each in a process forked from one that has loaded the libraries.

The forking process has not imported `mappings` or the gateway, so that each child imports all of it again,
with the mutated module from its own source.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import CodeType, ModuleType
from typing import Any

START_SECONDS = 60

LIBRARIES = (
    "aiohttp.web", "alembic.command", "babel.numbers", "cachetools", "click",
    "cryptography.fernet", "jinja2", "multidict", "prometheus_client", "pycountry", "pydantic",
    "schwifty", "simplejson", "sqlalchemy.ext.asyncio", "structlog",
    "typing_extensions", "uvloop", "yarl", "opentelemetry.trace",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """``source`` is the mutated module's; without a ``folder`` it only describes the interface."""

    module: str
    source: str
    folder: str = ""
    base_url: str = ""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the gateway's settings."""


class GatewayNotStarted(Exception):
    """The mutant's gateway did not start, which reveals the mutant."""


class GatewayForker:
    """Must be created before the process has an event loop or a thread, and must be closed."""

    def __init__(self) -> None:
        for name in LIBRARIES:
            importlib.import_module(name)
        assert not any(name.partition(".")[0] == "mappings" for name in sys.modules)
        self._pipe, child_pipe = Pipe()
        self._lifeline, lifeline_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(lifeline_end)
            self._pipe.close()
            _fork_on_demand(child_pipe, self._lifeline)
        child_pipe.close()
        self._lifeline_end = lifeline_end

    async def start(self, job: Job) -> Any:
        """Returns the address of the gateway, or the description of its interface; raises GatewayNotStarted."""
        self._pipe.send(job)
        result, reason = await asyncio.to_thread(self._receive)
        if result is None:
            raise GatewayNotStarted(reason)
        return result

    def _receive(self) -> Any:
        if not self._pipe.poll(START_SECONDS):
            raise GatewayNotStarted("it did not start in time")
        return self._pipe.recv()

    def stop(self) -> None:
        """Kills the gateway that was started last."""
        self._pipe.send(None)
        while self._pipe.recv() is not None:
            pass  # drop late messages

    def close(self) -> None:
        self._pipe.close()
        os.close(self._lifeline_end)
        os.waitpid(self._pid, 0)


def _fork_on_demand(jobs: Connection, lifeline: int) -> None:
    """Forks a child per job, one at a time; the job None kills it.

    Only the process that forked a child kills it, so that its process id has not been reused.
    """
    child = 0
    while True:
        try:
            job = jobs.recv()
        except EOFError:
            os._exit(0)
        if job is None:
            if child:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                child = 0
            jobs.send(None)
            continue
        child = os.fork()
        if child == 0:
            try:
                _serve(job, jobs, lifeline)
            except BaseException as error:  # noqa: BLE001 - a mutant may raise anything
                jobs.send((None, f"{type(error).__name__}: {error}"[:300]))
            finally:
                os._exit(0)


def _serve(job: Job, pipe: Connection, lifeline: int) -> None:
    # A mutant may loop forever or exhaust the memory.
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    sys.meta_path.insert(0, _MutantFinder(f"mappings.{job.module}", job.source))
    if not job.folder:
        from tests.running_gateway import describe_interface

        pipe.send((describe_interface(), ""))
    else:
        asyncio.run(_run(job, pipe, lifeline))


async def _run(job: Job, pipe: Connection, lifeline: int) -> None:
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    from pathlib import Path

    from tests.running_gateway import build_settings, run_until_shutdown

    asyncio.get_running_loop().add_reader(lifeline, os._exit, 0)
    settings = build_settings(Path(job.folder), job.base_url, **job.sections)
    await run_until_shutdown(settings, lambda running: pipe.send((running.url, "")))


class _MutantFinder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(name, spec.origin)
        loader.source = self._source
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    source = ""

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self.source, self.get_filename(fullname), "exec", dont_inherit=True)
