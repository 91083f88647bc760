"""Translation of problems to the field names of legacy clients."""

from collections.abc import Mapping

from gateway.simulator.errors import Problems


def translate_problems(
    problems: Problems, found_problems: Problems, client_names: Mapping[str, str], path: str = ""
) -> None:
    """Adds `found_problems` to `problems` under the client's field names.

    `client_names` maps the service's names to the client's; other fields get `path` as a prefix.
    """
    for problem in found_problems.collected:
        name = problem.field or ""
        problems.add_problem(problem.code, client_names.get(name, path + name), problem.message)
