"""The simulated service: its tenants and credentials, and access to its state for tests."""

import random
import string
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from decimal import Decimal

from gateway.simulator import money, processing, seeds
from gateway.simulator.books import Books, Start
from gateway.simulator.exchange import FaceName, Seen
from gateway.simulator.faults import Fault, same_path
from gateway.simulator.merchants import Merchants
from gateway.simulator.refusals import not_found
from gateway.simulator.state import Batch, Outcome, Payment, Recipient, World
from gateway.simulator.switches import DEMO_KEY, Key, Switches, Words
from gateway.simulator.wire import JsonObject

REQUESTS_KEPT = 10_000


class Service:
    """The state of a simulated service.

    `clock` returns Unix time in seconds. With a `seed`, generated ids are reproducible.
    `wallet_balance` is the initial currency and amount of each merchant's wallet account; without
    it, a merchant has none until `set_wallet_balance`.
    """

    def __init__(
        self,
        *,
        keys: Iterable[Key] = (DEMO_KEY,),
        switches: Switches | None = None,
        words: Words | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        requests_kept: int = REQUESTS_KEPT,
        wallet_balance: tuple[str, Decimal] | None = None,
    ) -> None:
        self.switches = switches or Switches()
        self.words = words or Words()
        self.clock = clock
        self.keys = {key.access_key: key for key in keys}
        self.worlds: dict[tuple[str, str], World] = {}
        self.requests: deque[Seen] = deque(maxlen=requests_kept)
        self.faults: list[Fault] = []
        self.books = Books()
        self.merchants = Merchants(self.keys)
        self._seed = seed
        self._wallet_balance = wallet_balance
        self._random: dict[str, random.Random] = {}

    def add_key(self, key: Key) -> None:
        self.keys[key.access_key] = key

    def world(
        self, merchant: str = DEMO_KEY.merchant, environment: str = DEMO_KEY.environment
    ) -> World:
        at = (merchant, environment)
        if at not in self.worlds:
            self.worlds[at] = World(
                merchant,
                environment,
                self.switches,
                self.words,
                self._seconds,
                self._new_id,
                self.books,
                self.merchants,
                wallet_balance=self._wallet_balance,
            )
        return self.worlds[at]

    @property
    def starts(self) -> list[Start]:
        """All executed starts, in order."""
        return self.books.starts

    @property
    def created(self) -> Counter[str]:
        return self.books.created

    def _seconds(self) -> float:
        # Tenants get this method instead of the clock: a test may replace `clock` later.
        return self.clock()

    def _new_id(self, prefix: str, length: int) -> str:
        # One sequence per prefix: creating one more account must not change the ids of batches.
        if prefix not in self._random:
            seed = None if self._seed is None else f"{self._seed} {prefix}"
            self._random[prefix] = random.Random(seed)  # noqa: S311  # ids protect nothing here
        return prefix + "".join(
            self._random[prefix].choices(string.ascii_letters + string.digits, k=length)
        )

    def recipient(self, recipient_id: str) -> Recipient:
        """Return a recipient of any tenant, also an archived one. Raises ApiError `not_found`."""
        for world in self.worlds.values():
            if recipient_id in world.recipients:
                return world.recipients[recipient_id]
        raise not_found("Recipient")

    def batch(self, batch_id: str) -> Batch:
        """Return a batch of any tenant in its current state. Raises ApiError `not_found`."""
        for world in self.worlds.values():
            if batch_id in world.batches:
                processing.finish_due(world)
                return world.batches[batch_id]
        raise not_found("Batch")

    def payment(self, payment_id: str) -> Payment:
        """Like `require_batch`, for a payment; seeded payments are kept with their recipients."""
        for world in self.worlds.values():
            if payment_id in world.payments:
                processing.finish_due(world)
                return world.payments[payment_id]
        raise not_found("Payment")

    def balance(
        self, merchant: str, currency: str, *, environment: str = DEMO_KEY.environment
    ) -> Decimal:
        world = self.world(merchant, environment)
        processing.finish_due(world)
        return world.balance(currency)

    def set_balance(
        self,
        merchant: str,
        currency: str,
        amount: Decimal | str,
        *,
        environment: str = DEMO_KEY.environment,
    ) -> None:
        """Set one balance; initially each merchant has funds in five currencies."""
        self.world(merchant, environment).balances[currency] = money.cents(Decimal(amount))

    def set_wallet_balance(
        self,
        merchant: str,
        currency: str,
        amount: Decimal | str,
        *,
        environment: str = DEMO_KEY.environment,
    ) -> None:
        world = self.world(merchant, environment)
        world.wallet_balance = (currency, money.cents(Decimal(amount)))

    def set_outcome(self, recipient_id: str, outcome: Outcome) -> None:
        """Set the final status of the recipient's payments in all batches that finish later."""
        # Batches that are due now must still finish with the previous outcome.
        for world in self.worlds.values():
            processing.finish_due(world)
        self.recipient(recipient_id).outcome = outcome

    def set_compliance(self, recipient_id: str, status: str) -> None:
        """Set `pending`, `review`, `verified` or `blocked`, which no operation can change."""
        recipient = self.recipient(recipient_id)
        now = self.world().now()
        recipient.compliance_status = status
        recipient.compliance_checked_at = None if status == "pending" else now
        recipient.updated_at = now

    def seed_recipients(
        self,
        n: int,
        seed: int = 0,
        *,
        merchant: str = DEMO_KEY.merchant,
        environment: str = DEMO_KEY.environment,
    ) -> list[Recipient]:
        """Create varied recipients; the same seed and options give the same recipients."""
        return seeds.recipients(self.world(merchant, environment), n, seed)

    def seed_payments(self, recipient_id: str, n: int, seed: int = 0) -> list[JsonObject]:
        return seeds.payments(self.recipient(recipient_id), n, seed)

    def add_payment(self, recipient_id: str, payment: JsonObject) -> None:
        self.recipient(recipient_id).payments.append(payment)

    def seed_offline_payments(self, recipient_id: str, n: int, seed: int = 0) -> list[JsonObject]:
        return seeds.offline_payments(self.recipient(recipient_id), n, seed)

    def calls(
        self, method: str = "*", path: str = "*", *, face: FaceName = "current"
    ) -> list[Seen]:
        """List the recorded requests of one interface, oldest first, by method and path pattern."""
        return [
            each
            for each in self.requests
            if face == each.face and method in ("*", each.method) and same_path(path, each.path)
        ]

    def take_fault(self, method: str, path: str, face: FaceName = "current") -> Fault | None:
        for fault in self.faults:
            if fault.face == face and fault.meets(method, path):
                # A fault with several uses stays in the queue until they are used up.
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None
