"""Comparison runs against two fake services."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

import pytest

from tests.gateway.compare.fake_services import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    PlannedResponse,
    ReceivedRequest,
    build_comparison_report,
    build_har,
    open_fake_service,
    run_comparison,
)

OK = {"ok": True}


def respond_ok(_request: ReceivedRequest) -> Any:
    return OK


def build_refusal(status: int, code: str, message: str = "no") -> PlannedResponse:
    return PlannedResponse({"ok": False, "errors": [{"code": code, "message": message}]}, status)


class RecipientService:
    """A fake service that stores recipients under ids with its own prefix."""

    def __init__(self, prefix: str) -> None:
        self._numbers = itertools.count(1)
        self._prefix = prefix
        self.recipients: dict[str, dict[str, Any]] = {}

    def __call__(self, request: ReceivedRequest) -> Any:
        path = request.target.partition("?")[0]
        if request.method == "POST" and path == "/v1/recipients":
            id_ = f"R-{self._prefix}{next(self._numbers)}"
            self.recipients[id_] = {"id": id_, **json.loads(request.body)}
            return {"ok": True, "recipient": self.recipients[id_]}
        if path == "/v1/recipients":
            return {"ok": True, "recipients": [*self.recipients.values()]}
        id_ = path.split("/")[3]
        if id_ not in self.recipients:
            return build_refusal(404, "not_found", f"{id_} is not known")
        if request.method == "DELETE":
            del self.recipients[id_]
            return {"ok": True, "object": "deleted"}
        if request.method == "PATCH":
            self.recipients[id_] |= json.loads(request.body)
            return {"ok": True, "object": "updated"}
        return {"ok": True, "recipient": self.recipients[id_]}


SCENARIO = """
[[steps]]
request = "POST /v1/recipients"
body = { email = "${run}@example.com", amount = 10.50, parts = [1, "${run}"] }
capture = { one = "recipient.id" }

[[steps]]
request = "GET /v1/recipients/${one}"

[[steps]]
request = "PATCH /v1/recipients/${one}"
body = { memo = "for ${one}", ref = "${one}" }

[[steps]]
request = "GET /v1/recipients?search=${one}"

[[steps]]
request = "DELETE /v1/recipients/${one}"

[[steps]]
request = "GET /v1/recipients/${one}"
"""


async def test_scenario_runs_with_ids_of_each_side() -> None:
    comparison = await run_comparison(
        RecipientService("a"), RecipientService("zz"), SCENARIO, allow_writes=True
    )
    assert comparison.report["result"] == "equal"
    assert comparison.report["counts"]["compared"] == 6
    assert comparison.control.lines == [
        "POST /v1/recipients",
        "GET /v1/recipients/R-a1",
        "PATCH /v1/recipients/R-a1",
        "GET /v1/recipients?search=R-a1",
        "DELETE /v1/recipients/R-a1",
        "GET /v1/recipients/R-a1",
    ]
    assert comparison.candidate.lines == [
        line.replace("R-a1", "R-zz1") for line in comparison.control.lines
    ]
    assert comparison.control.requests[0].body == comparison.candidate.requests[0].body
    assert '"amount":10.50' in comparison.control.requests[0].body
    assert json.loads(comparison.candidate.requests[2].body) == {
        "memo": "for R-zz1",
        "ref": "R-zz1",
    }


async def test_object_that_changes_identity_is_a_difference() -> None:
    class ServiceWithChangingId(RecipientService):
        def __call__(self, request: ReceivedRequest) -> Any:
            answer = super().__call__(request)
            if request.method == "GET" and isinstance(answer, dict) and "recipient" in answer:
                return {"ok": True, "recipient": {**answer["recipient"], "id": "R-zz7"}}
            return answer

    comparison = await run_comparison(
        RecipientService("a"), ServiceWithChangingId("zz"), SCENARIO, allow_writes=True
    )
    assert comparison.list_differences() == [["value", "recipient.id", 1]]
    (example,) = comparison.report["differences"][0]["examples"]
    assert (example["control"]["text"], example["candidate"]["text"]) == ("R-a1", "R-zz7")
    assert example["note"] == "control's R-a1 was paired with candidate's R-zz1"


async def test_ids_of_each_side_are_treated_as_equal_in_answers() -> None:
    recipient_service = RecipientService("w")  # both sides write to the same account
    scenario = """
    [[steps]]
    request = "POST /v1/recipients"
    body = { email = "${own}@example.com" }
    [[steps]]
    request = "GET /v1/payments?search=${own}"
    """

    def respond(request: ReceivedRequest) -> Any:
        if request.method == "POST":
            return recipient_service(request)
        search_word = request.target.rpartition("=")[2]
        return {
            "found": [
                recipient
                for recipient in recipient_service.recipients.values()
                if search_word in recipient["email"]
            ]
        }

    comparison = await run_comparison(respond, respond, scenario, allow_writes=True)
    assert comparison.report["result"] == "equal"
    assert (
        len(recipient_service.recipients)
        == len({recipient["email"] for recipient in recipient_service.recipients.values()})
        == 2
    )


async def test_id_equal_on_both_sides_stays_equal() -> None:
    def respond(request: ReceivedRequest) -> Any:
        is_later = request.target.endswith("B-2") and request.headers["x-api-key"] == CANDIDATE_KEY
        return {"recipient": {"id": "R-2" if is_later else "R-1"}}

    comparison = await run_comparison(respond, respond, "GET /v1/batches/B-1\nGET /v1/batches/B-2")
    assert comparison.list_differences() == [["value", "recipient.id", 1]]


async def test_without_writes_allowed_dependent_steps_are_skipped() -> None:
    comparison = await run_comparison(
        RecipientService("a"), RecipientService("b"), SCENARIO, "GET /v1/recipients"
    )
    assert comparison.control.lines == comparison.candidate.lines == ["GET /v1/recipients"]
    report = comparison.report
    assert report["exit_code"] == 0
    assert [step["step"] for step in report["not_sent"]] == [1]
    assert [step["step"] for step in report["skipped"]] == [2, 3, 4, 5, 6]
    assert "write and was not sent" in report["skipped"][0]["why"]
    assert report["remarks"][0] == (
        "Not sent: 1 write, and 5 steps that need their results. "
        "--allow-writes sends them to both sides."
    )


async def test_run_without_comparisons_reports_no_equality() -> None:
    comparison = await run_comparison(RecipientService("a"), RecipientService("b"), SCENARIO)
    assert (comparison.report["result"], comparison.report["exit_code"]) == ("could not run", 2)
    assert comparison.control.requests == comparison.candidate.requests == []


async def test_steps_that_depend_on_refused_step_are_skipped_and_reported() -> None:
    def refuse_writes(request: ReceivedRequest) -> Any:
        return build_refusal(406, "invalid_field") if request.method == "POST" else OK

    comparison = await run_comparison(refuse_writes, refuse_writes, SCENARIO, allow_writes=True)
    assert (comparison.report["result"], comparison.report["exit_code"]) == ("could not run", 2)
    assert {step["why"] for step in comparison.report["skipped"]} == {
        "needs recipient.id of step 1, but the 406 of control does not contain it"
    }
    comparison = await run_comparison(
        RecipientService("a"), refuse_writes, SCENARIO, allow_writes=True
    )
    assert comparison.list_differences() == [["status", "@status", 1]]
    assert "but the 406 of candidate" in comparison.report["skipped"][0]["why"]


async def test_each_key_is_sent_to_its_own_side_only() -> None:
    steps = "\n".join(
        f'[[steps]]\nrequest = "GET /v1/batches"\nkey = "{key}"' for key in ("own", "none", "wrong")
    )
    comparison = await run_comparison(
        respond_ok, respond_ok, "GET /v1/recipients\nHEAD /v1/batches", steps
    )
    sent_keys = [
        [received.headers.get("x-api-key") for received in service.requests]
        for service in (comparison.control, comparison.candidate)
    ]
    wrong_key = "a-key-that-is-nobodys"
    assert sent_keys == [
        [CONTROL_KEY, CONTROL_KEY, CONTROL_KEY, None, wrong_key],
        [CANDIDATE_KEY, CANDIDATE_KEY, CANDIDATE_KEY, None, wrong_key],
    ]
    for service, other_key in (
        (comparison.control, CANDIDATE_KEY),
        (comparison.candidate, CONTROL_KEY),
    ):
        assert other_key not in json.dumps(
            [[received.line, received.body, received.headers] for received in service.requests]
        )


async def test_redirect_is_compared_and_not_followed() -> None:
    async with open_fake_service(respond_ok) as redirect_target:

        def respond_with_redirect(_request: ReceivedRequest) -> Any:
            return PlannedResponse(OK, 302, {"Location": f"{redirect_target.url}/v1/recipients"})

        comparison = await run_comparison(
            respond_with_redirect, respond_with_redirect, "GET /v1/recipients"
        )
        assert comparison.report["operations"][0]["statuses"] == {"302/302": 1}
        assert redirect_target.requests == []
        assert comparison.report["remarks"] == [
            "Both sides redirected 1 time. Redirects are not followed: give the addresses that they lead to.",
            "No response was a success on both sides: only error responses were compared.",
        ]


@pytest.mark.parametrize("unreachable_side", ["control", "candidate"])
async def test_unreachable_side_is_reported_before_any_request(unreachable_side: str) -> None:
    async with open_fake_service(respond_ok) as reachable_service:
        urls = [reachable_service.url, "http://127.0.0.1:1"]
        report = await build_comparison_report(
            urls if unreachable_side == "candidate" else urls[::-1], "GET /v1/recipients"
        )
        assert report["exit_code"] == 2
        assert report["sentence"] == (
            f"The comparison could not run: {unreachable_side} at http://127.0.0.1:1 cannot be reached: "
            "cannot connect: connection refused."
        )
        assert reachable_service.requests == []


async def test_missing_answer_is_reported_and_rest_is_compared() -> None:
    def respond_slowly(request: ReceivedRequest) -> Any:
        return PlannedResponse(OK, delay_seconds=30 if "batches" in request.target else 0)

    comparison = await run_comparison(
        respond_ok, respond_slowly, "GET /v1/recipients\nGET /v1/batches", seconds=0.3
    )
    assert comparison.report["exit_code"] == 2
    assert [
        (failed_request["request"], failed_request["why"])
        for failed_request in comparison.report["failed"]
    ] == [("GET /v1/batches", "candidate: no answer within 0.3 s")]
    assert comparison.report["counts"]["equal"] == 1


async def test_read_is_retried_once_after_dropped_connection_and_write_never() -> None:
    queries: list[str] = []

    def drop_first_connection(request: ReceivedRequest) -> Any:
        queries.append(request.line)
        return PlannedResponse(OK, drops_connection=queries.count(request.line) == 1)

    write_scenario = '[[steps]]\nrequest = "DELETE /v1/recipients/R-1"'
    comparison = await run_comparison(
        respond_ok, drop_first_connection, "GET /v1/recipients", write_scenario, allow_writes=True
    )
    assert queries == ["GET /v1/recipients", "GET /v1/recipients", "DELETE /v1/recipients/R-1"]
    assert comparison.report["counts"]["equal"] == 1
    assert comparison.report["failed"][0]["why"].startswith(
        "candidate: the connection was dropped; the outcome of the write"
    )


@pytest.mark.parametrize("refusing_side", ["control", "candidate"])
async def test_key_refused_by_first_answer_ends_the_run(refusing_side: str) -> None:
    def refuse_key(_request: ReceivedRequest) -> Any:
        return build_refusal(403, "invalid_api_key")

    responders = (
        (refuse_key, respond_ok) if refusing_side == "control" else (respond_ok, refuse_key)
    )
    reads = "\n".join(f"GET /v1/recipients?page={page}" for page in range(100))
    comparison = await run_comparison(*responders, reads)
    assert comparison.report["exit_code"] == 2
    assert (
        f"{refusing_side} refuses its API key (403 invalid_api_key); check {refusing_side.upper()}_API_KEY"
        in (comparison.report["sentence"])
    )
    assert len(comparison.control.requests) < 50


async def test_both_sides_are_requested_concurrently() -> None:
    barrier = asyncio.Barrier(2)

    async def respond(_request: ReceivedRequest) -> Any:
        async with asyncio.timeout(30):
            await barrier.wait()  # neither side can continue alone
        return OK

    comparison = await run_comparison(respond, respond, "GET /v1/recipients\nGET /v1/batches")
    assert comparison.report["counts"]["equal"] == 2


async def test_reads_that_need_an_id_wait_for_its_source() -> None:
    """The list is slow, and later steps still use the candidate's own id."""

    def build_responder(prefix: str) -> Any:
        def respond(request: ReceivedRequest) -> Any:
            if request.target == "/v1/recipients":
                ids = [f"R-{prefix}{number}" for number in range(3)]
                return PlannedResponse(
                    {"recipients": [{"id": id_} for id_ in ids]}, delay_seconds=0.2
                )
            id_ = request.target.split("/")[3]
            is_own_id = id_.startswith(f"R-{prefix}")
            return {"recipient": {"id": id_}} if is_own_id else build_refusal(404, "not_found")

        return respond

    reads = "GET /v1/recipients\n" + "\n".join(f"GET /v1/recipients/R-a{n}" for n in range(3))
    comparison = await run_comparison(build_responder("a"), build_responder("b"), reads)
    assert comparison.report["result"] == "equal"
    assert sorted(comparison.candidate.lines[1:]) == [
        f"GET /v1/recipients/R-b{n}" for n in range(3)
    ]
    assert comparison.report["ids"] == {"paired": 3, "spelled_differently": 3}
    assert "3 ids of 3 differ between the two sides" in comparison.report["remarks"][0]


async def test_recorded_traffic_is_replayed_with_ids_of_each_side() -> None:
    recording = build_har(
        ("POST", "https://old.example/v1/recipients", {"n": 1}, {"recipient": {"id": "R-rec"}}),
        ("GET", "https://old.example/v1/recipients/R-rec"),
        ("PATCH", "https://old.example/v1/recipients/R-rec", {"memo": "to R-rec"}),
        ("DELETE", "https://old.example/v1/recipients/R-rec"),
    )
    comparison = await run_comparison(
        RecipientService("a"), RecipientService("b"), recording, allow_writes=True
    )
    assert comparison.report["result"] == "equal"
    assert [line.split("/")[-1] for line in comparison.control.lines[1:]] == ["R-a1"] * 3
    assert [line.split("/")[-1] for line in comparison.candidate.lines[1:]] == ["R-b1"] * 3
    assert comparison.candidate.requests[2].body == '{"memo": "to R-b1"}'


async def test_recorded_reads_keep_existing_ids_in_shifted_list() -> None:
    def respond(request: ReceivedRequest) -> Any:
        ids = ["R-new", "R-old"]
        if request.target == "/v1/recipients":
            return {"recipients": [{"id": id_} for id_ in ids]}
        return {"recipient": {"id": request.target.split("/")[3]}}

    recording = build_har(
        ("GET", "https://old.example/v1/recipients", None, {"recipients": [{"id": "R-old"}]}),
        ("GET", "https://old.example/v1/recipients/R-old"),
    )
    comparison = await run_comparison(respond, respond, recording)
    assert (
        comparison.control.lines[1] == comparison.candidate.lines[1] == "GET /v1/recipients/R-old"
    )


async def test_step_that_needs_unsent_recorded_write_is_skipped() -> None:
    recording = build_har(
        ("POST", "https://old.example/v1/recipients", {"n": 1}, {"recipient": {"id": "R-rec"}}),
        ("GET", "https://old.example/v1/recipients/R-rec"),
        ("GET", "https://old.example/v1/recipients"),
    )
    comparison = await run_comparison(RecipientService("a"), RecipientService("b"), recording)
    assert comparison.control.lines == ["GET /v1/recipients"]
    assert (comparison.report["counts"]["not_sent"], comparison.report["counts"]["skipped"]) == (
        1,
        1,
    )
    assert comparison.report["exit_code"] == 0


async def test_read_is_polled_until_its_condition_holds() -> None:
    call_count = itertools.count()

    def respond(request: ReceivedRequest) -> Any:
        if request.headers["x-api-key"] == CONTROL_KEY:
            return {"batch": {"status": "complete"}}
        return {"batch": {"status": "complete" if next(call_count) else "processing"}}

    step = """
    [[steps]]
    request = "GET /v1/batches/B-1"
    until = { path = "batch.status", is = "complete", within = 20 }
    """
    comparison = await run_comparison(respond, respond, step)
    assert comparison.report["result"] == "equal"
    assert (len(comparison.control.requests), len(comparison.candidate.requests)) == (1, 2)


async def test_scenario_rules_apply_to_own_steps_and_are_counted() -> None:
    numbers = itertools.count()

    def respond(_request: ReceivedRequest) -> Any:
        return {"serial": next(numbers)}

    scenario = """
    rules = { present = [{ path = "serial", reason = "counts every answer" }] }
    steps = [{ request = "GET /v1/recipients" }]
    """
    comparison = await run_comparison(respond, respond, scenario, "GET /v1/recipients")
    assert comparison.list_differences() == [["value", "serial", 1]]
    (rule,) = [
        report_rule
        for report_rule in comparison.report["rules"]
        if report_rule["origin"] == "input 1"
    ]
    assert (rule["reason"], rule["used"]) == ("counts every answer", 1)


async def test_times_must_agree_if_both_sides_show_the_same_objects() -> None:
    seconds = iter(range(60))

    def respond(_request: ReceivedRequest) -> Any:
        return {"createdAt": f"2026-03-01T10:00:{next(seconds):02}.000Z"}

    write = '[[steps]]\nrequest = "POST /v1/batches"'
    read_comparison = await run_comparison(respond, respond, "GET /v1/recipients")
    assert read_comparison.list_differences() == [["value", "createdAt", 1]]
    write_comparison = await run_comparison(respond, respond, write, allow_writes=True)
    assert write_comparison.list_differences() == []


def build_services_with_one_difference(number: int) -> tuple[Any, Any]:
    """Build two services; one amount in one answer of the candidate is wrong by a cent."""

    def build_responder(wrong_page: int | None) -> Any:
        def respond(request: ReceivedRequest) -> Any:
            page = int(re.findall(r"page=(\d+)", request.target)[0])
            amount = f"{page}.{'01' if page == wrong_page else '00'}"
            return f'{{"ok":true,"payments":[{{"id":"P-{page}","amount":"{amount}"}}]}}'.encode()

        return respond

    return build_responder(None), build_responder(number)


THOUSAND_READS = "\n".join(f"GET /v1/payments?page={page}" for page in range(1_000))


async def test_one_wrong_amount_in_a_thousand_answers_is_found() -> None:
    comparison = await run_comparison(*build_services_with_one_difference(765), THOUSAND_READS)
    assert comparison.list_differences() == [["value", "payments[].amount", 1]]
    (example,) = comparison.report["differences"][0]["examples"]
    assert (example["control"]["text"], example["candidate"]["text"]) == ("765.00", "765.01")
    assert example["request"] == "GET /v1/payments?page=765"
    assert comparison.report["counts"]["equal"] == 999
    assert comparison.control.max_concurrent_requests == 1


async def test_difference_in_every_answer_is_reported_once_with_examples() -> None:
    reads = "\n".join(f"GET /v1/payments?page={page}" for page in range(200))
    comparison = await run_comparison(
        lambda _: {"amount": "1.00"}, lambda _: {"amount": "1.01"}, reads, examples=3
    )
    assert comparison.list_differences() == [["value", "amount", 200]]
    assert len(comparison.report["differences"][0]["examples"]) == 3


async def test_equal_answers_give_equal_reports() -> None:
    def respond_with_delays(request: ReceivedRequest) -> Any:
        page = int(request.target.rpartition("=")[2])
        delay = 0.02 if page % 7 == 0 else 0
        return PlannedResponse({"list": [{"id": f"R-{page % 5}x", "n": page}]}, delay_seconds=delay)

    def respond_differently(request: ReceivedRequest) -> Any:
        page = int(request.target.rpartition("=")[2])
        return {"list": [{"id": f"R-{page % 3}y", "n": page}]}

    reads = "\n".join(f"GET /v1/recipients?page={page}" for page in range(40))
    reports = [
        await run_comparison(respond_with_delays, respond_differently, reads) for _ in range(2)
    ]
    first_differences, second_differences = (
        comparison.report["differences"] for comparison in reports
    )
    assert first_differences
    assert first_differences == second_differences


async def test_write_with_invalid_address_is_reported_as_not_sent() -> None:
    async with open_fake_service(respond_ok) as service:
        # The system resolves digits of full width, and an HTTP client refuses them.
        url = service.url.replace("127", "\uff11\uff12\uff17", 1)
        write = '[[steps]]\nrequest = "POST /v1/batches"'
        report = await build_comparison_report([service.url, url], write, allow_writes=True)
    assert [step["why"] for step in report["failed"]] == ["candidate: not a valid URL"]
