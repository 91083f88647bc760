"""Keys as an operator imports them."""

from __future__ import annotations

import json
from typing import Any

from gateway.store import Store
from gateway.store.key_import import import_keys
from gateway.store.key_lines import read_lines


async def put(store: Store, *lines: dict[str, Any]) -> None:
    await import_keys(store, read_lines("\n".join(map(json.dumps, lines)).encode()))
