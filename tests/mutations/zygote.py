"""Gateways of mutants: each in a process of its own, forked from one that has the libraries loaded.

The process that forks has none of `mappings` or of the gateway imported, so that in each child all of
it is imported anew, the mutated module from its own source.
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
    "pydantic_settings", "schwifty", "simplejson", "sqlalchemy.ext.asyncio", "structlog",
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
    """Of its settings."""


class GatewayNotStarted(Exception):
    """The mutant's gateway did not start, which reveals the mutant."""


class GatewayForker:
    """Made before there is a loop or a thread in the process; ``end`` it."""

    def __init__(self) -> None:
        for name in LIBRARIES:
            importlib.import_module(name)
        assert not any(name.partition(".")[0] == "mappings" for name in sys.modules)
        self._here, there = Pipe()
        self._lifeline, end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(end)
            self._here.close()
            _fork_on_demand(there, self._lifeline)
        there.close()
        self._end = end

    async def start(self, job: Job) -> Any:
        """The address of its gateway, or the description of its interface; raises NotStarted."""
        self._here.send(job)
        answer, why = await asyncio.to_thread(self._receive)
        if answer is None:
            raise GatewayNotStarted(why)
        return answer

    def _receive(self) -> Any:
        if not self._here.poll(START_SECONDS):
            raise GatewayNotStarted("it did not start in time")
        return self._here.recv()

    def stop(self) -> None:
        """Ends the gateway that was started last; what it leaves behind is nobody's."""
        self._here.send(None)
        while self._here.recv() is not None:
            pass  # drop late messages

    def end(self) -> None:
        self._here.close()
        os.close(self._end)
        os.waitpid(self._pid, 0)


def _fork_on_demand(jobs: Connection, lifeline: int) -> None:
    """One at a time; None ends it. Whoever forked it ends it, so that its number is still its own."""
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
            except BaseException as error:  # noqa: BLE001 - whatever a mutant does
                jobs.send((None, f"{type(error).__name__}: {error}"[:300]))
            finally:
                os._exit(0)


def _serve(job: Job, tell: Connection, lifeline: int) -> None:
    # A mutant may loop for ever or exhaust the memory.
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    sys.meta_path.insert(0, _MutantFinder(f"mappings.{job.module}", job.source))
    if not job.folder:
        from tests.running_gateway import describe_interface

        tell.send((describe_interface(), ""))
    else:
        asyncio.run(_run(job, tell, lifeline))


async def _run(job: Job, tell: Connection, lifeline: int) -> None:
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    from pathlib import Path

    from tests.running_gateway import build_settings, run_until_shutdown

    asyncio.get_running_loop().add_reader(lifeline, os._exit, 0)
    settings = build_settings(Path(job.folder), job.base_url, **job.sections)
    await run_until_shutdown(settings, lambda running: tell.send((running.url, "")))


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
