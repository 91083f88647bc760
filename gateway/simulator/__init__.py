"""A stateful simulator of the payout service, with its current and its legacy interface.

It is written from the two interface documents alone and imports nothing else of this project, so
that a test against it cannot pass because both sides share a mistake. It is not the service:
behaviour that the documents leave open is chosen here. Each such choice is noted in the code, and
many of them are options (`ServiceOptions`). Bare section numbers in this package are of the current
interface's document, and in `legacy` of the legacy one's.

    simulator = await start_simulator(service=Service())
    ... simulator.url, simulator.service; with a legacy_port also simulator.legacy_url ...
    await simulator.stop()
"""

from gateway.simulator.options import (
    DEMO_CREDENTIALS,
    LegacyVocabulary,
    ServiceCredentials,
    ServiceOptions,
    Vocabulary,
)
from gateway.simulator.server import ListenError, Simulator, start_simulator
from gateway.simulator.state import WALLET_FUNDS, Service

__all__ = [
    "DEMO_CREDENTIALS",
    "WALLET_FUNDS",
    "LegacyVocabulary",
    "ListenError",
    "Service",
    "ServiceCredentials",
    "ServiceOptions",
    "Simulator",
    "Vocabulary",
    "start_simulator",
]
