"""The requests page: the newest requests and errors of all workers, and the trace of any id."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.console.pages import Pages, build_requests_url, redirect_see_other
from gateway.observability.recent_requests import (
    MAX_REQUESTS,
    SEPARATOR,
    RecentRequest,
)
from gateway.operator.object_trace import find_object_tenants, format_trace, trace_object

FILTERS = ("status", "operation", "merchant", "environment", "key", "code", "field")

STATUS_CLASSES: Mapping[str, range] = {
    "errors": range(400, 600),
    "4xx": range(400, 500),
    "5xx": range(500, 600),
}

ROW_CHOICES = (50, 1000)
MAX_GROUPS = 30
MAX_FILTER_CHOICES = 200


async def show_requests(pages: Pages, request: web.Request) -> web.StreamResponse:
    # An empty field of the form filters by nothing.
    filters = {name: request.query[name] for name in FILTERS if request.query.get(name)}
    requests = await _load_requests(pages)
    matching = [each for each in requests if _matches_filters(each, filters)]
    row_count = ROW_CHOICES["rows" in request.query]
    return pages.render_page(
        request,
        "requests",
        requests=matching[:row_count],
        found=len(matching),
        more=build_requests_url(**filters, rows=ROW_CHOICES[-1]),
        groups=_group_errors(matching)[:MAX_GROUPS],
        choices={name: _list_choices(requests, name) for name in FILTERS},
        filters=filters,
        since=_parse_time(requests[-1].at) if requests else None,
        kept=MAX_REQUESTS,
        moment_of=_parse_time,
    )


async def show_trace(pages: Pages, request: web.Request) -> web.StreamResponse:
    """Shows everything known about an id, or the requests of a key."""
    id_, store = request.query.get("id", "").strip(), pages.store
    if any(key.name == id_ for key in await load_listed_keys(store)):
        return redirect_see_other(build_requests_url(key=id_))
    tenants = await find_object_tenants(store, id_) if id_ else []
    requests = [each for each in await _load_requests(pages) if each.request_id == id_]
    return pages.render_page(
        request,
        "trace",
        200 if tenants or requests else 404,
        id=id_,
        requests=requests,
        traces=[
            "\n".join(format_trace(await trace_object(store, tenant, id_))) for tenant in tenants
        ],
        moment_of=_parse_time,
    )


async def _load_requests(pages: Pages) -> list[RecentRequest]:
    """Loads the requests of all workers, the newest first."""
    return sorted(await pages.recent_requests.load(), key=lambda each: -each.at)


def _matches_filters(request: RecentRequest, filters: Mapping[str, str]) -> bool:
    return all(
        request.status in STATUS_CLASSES[wanted]
        if name == "status" and wanted in STATUS_CLASSES
        # One of several, or all of them, as a group of errors has them.
        else wanted in (str(getattr(request, name)), *_list_values(request, name))
        for name, wanted in filters.items()
    )


def _list_values(request: RecentRequest, name: str) -> list[str]:
    """Lists the values that a request is found by: it may have several codes and fields."""
    value = str(getattr(request, name))
    return value.split(SEPARATOR) if name in ("code", "field") else [value]


def _list_choices(requests: Iterable[RecentRequest], name: str) -> list[str]:
    values = sorted({value for each in requests for value in _list_values(each, name)} - {""})
    classes = list(STATUS_CLASSES) if name == "status" else []
    return [*classes, *values[:MAX_FILTER_CHOICES]]


def _group_errors(
    requests: Iterable[RecentRequest],
) -> list[tuple[list[RecentRequest], list[tuple[str, int]]]]:
    """Groups errors by status, code and field or reason, with the top merchants."""
    groups: dict[tuple[int, str, str], list[RecentRequest]] = {}
    for request in requests:
        if request.status >= 400:
            # Different causes are different groups, also if the client is told the same.
            key = request.status, request.code, request.field or request.reason
            groups.setdefault(key, []).append(request)
    return [
        (members, Counter(member.merchant for member in members).most_common(3))
        for members in sorted(groups.values(), key=lambda group: (-len(group), -group[0].at))
    ]


def _parse_time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
