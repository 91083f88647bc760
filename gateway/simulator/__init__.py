"""A stateful stand-in for the payout service: its current interface, and its legacy one.

It is its own reading of the two documents: it imports nothing else of this
project, so that tests which run against it cannot agree with the code under test by accident.
It is not the service: what the documents do not show is a choice made here, and said so where
it is made, and can often be switched (`Switches`).

    simulator = await start(service=Service(seed=1))
    ... simulator.url, simulator.service; with a legacy_port simulator.legacy.url ...
    await simulator.stop()
"""

from gateway.simulator.books import Start
from gateway.simulator.exchange import Seen
from gateway.simulator.faults import Fault
from gateway.simulator.running import NotListening, Simulator, start
from gateway.simulator.service import Service
from gateway.simulator.state import WALLET_FUNDS, Account, Batch, Payment, Recipient, World
from gateway.simulator.switches import DEMO_API_KEY, DEMO_KEY, Key, LegacyWords, Switches, Words

__all__ = [
    "DEMO_API_KEY",
    "DEMO_KEY",
    "WALLET_FUNDS",
    "Account",
    "Batch",
    "Fault",
    "Key",
    "LegacyWords",
    "NotListening",
    "Payment",
    "Recipient",
    "Seen",
    "Service",
    "Simulator",
    "Start",
    "Switches",
    "Words",
    "World",
    "start",
]
