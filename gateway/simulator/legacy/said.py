"""Translation of problems to the field names of legacy clients."""

from collections.abc import Mapping

from gateway.simulator.refusals import Problems


def say(problems: Problems, found: Problems, names: Mapping[str, str], place: str = "") -> None:
    """Add `found_problems` to `problems` under the client's field names.

    `client_names` maps the service's names to the client's; other fields get `path` as a prefix.
    """
    for each in found.found:
        name = each.field or ""
        problems.add(each.code, names.get(name, place + name), each.message)
