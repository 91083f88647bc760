"""Problems that the service's own rules find, under the names that the client sent."""

from collections.abc import Mapping

from gateway.simulator.refusals import Problems


def say(problems: Problems, found: Problems, names: Mapping[str, str], place: str = "") -> None:
    """`names` by the rules' own; a field that is not in it has the same name at its place."""
    for each in found.found:
        name = each.field or ""
        problems.add(each.code, names.get(name, place + name), each.message)
