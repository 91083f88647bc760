"""The simulator with what only tests need of it: recorded requests, faults, and odd behaviour."""

from typing import Any

from gateway.simulator import (
    DEMO_CREDENTIALS,
    WALLET_FUNDS,
    LegacyVocabulary,
    ListenError,
    ServiceCredentials,
    Simulator,
    Vocabulary,
)
from gateway.simulator import start_simulator as start_plain_simulator
from gateway.simulator.options import DEMO_API_KEY
from gateway.simulator.state import Batch, Recipient
from tests.simulator.faults import Fault
from tests.simulator.http_handler import RequestHandler
from tests.simulator.service import BatchStart, Deviation, Service, ServiceOptions

__all__ = [
    "DEMO_API_KEY",
    "DEMO_CREDENTIALS",
    "WALLET_FUNDS",
    "Batch",
    "BatchStart",
    "Deviation",
    "Fault",
    "LegacyVocabulary",
    "ListenError",
    "Recipient",
    "RequestHandler",
    "Service",
    "ServiceCredentials",
    "ServiceOptions",
    "Simulator",
    "Vocabulary",
    "start_simulator",
]


async def start_simulator(*, service: Service | None = None, **options: Any) -> Simulator:
    """Starts a simulator as the product does, with a handler that injects the planned faults."""
    return await start_plain_simulator(
        service=service or Service(), build_handler=RequestHandler, **options
    )
