"""Both sides asked, and their answers compared: against services of the tests' own."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

import pytest

from gateway.compare.rules import Rules, build_rules
from tests.gateway.compare.towns import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    Compared,
    Heard,
    Said,
    compared,
    har,
    open_town,
    report,
)

OK = {"ok": True}


def ok(_heard: Heard) -> Any:
    return OK


def refusal(status: int, code: str, message: str = "no") -> Said:
    return Said({"ok": False, "errors": [{"code": code, "message": message}]}, status)


class Books:
    """Recipients with ids of this service's own, as a legacy service keeps them."""

    def __init__(self, prefix: str) -> None:
        self._numbers = itertools.count(1)
        self._prefix = prefix
        self.kept: dict[str, dict[str, Any]] = {}

    def __call__(self, heard: Heard) -> Any:
        path = heard.target.partition("?")[0]
        if heard.method == "POST" and path == "/v1/recipients":
            id_ = f"R-{self._prefix}{next(self._numbers)}"
            self.kept[id_] = {"id": id_, **json.loads(heard.body)}
            return {"ok": True, "recipient": self.kept[id_]}
        if path == "/v1/recipients":
            return {"ok": True, "recipients": [*self.kept.values()]}
        id_ = path.split("/")[3]
        if id_ not in self.kept:
            return refusal(404, "not_found", f"{id_} is not known")
        if heard.method == "DELETE":
            del self.kept[id_]
            return {"ok": True, "object": "deleted"}
        if heard.method == "PATCH":
            self.kept[id_] |= json.loads(heard.body)
            return {"ok": True, "object": "updated"}
        return {"ok": True, "recipient": self.kept[id_]}


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


async def test_a_scenario_runs_in_each_sides_own_world() -> None:
    done = await compared(Books("a"), Books("zz"), SCENARIO, allow_writes=True)
    assert done.report["result"] == "equal"
    assert done.report["counts"]["compared"] == 6
    assert done.control.lines == [
        "POST /v1/recipients",
        "GET /v1/recipients/R-a1",
        "PATCH /v1/recipients/R-a1",
        "GET /v1/recipients?search=R-a1",
        "DELETE /v1/recipients/R-a1",
        "GET /v1/recipients/R-a1",
    ]
    assert done.candidate.lines == [line.replace("R-a1", "R-zz1") for line in done.control.lines]
    assert done.control.heard[0].body == done.candidate.heard[0].body
    assert '"amount":10.50' in done.control.heard[0].body
    assert json.loads(done.candidate.heard[2].body) == {"memo": "for R-zz1", "ref": "R-zz1"}


async def test_headers_are_filled_in_as_well() -> None:
    scenario = """
    [[steps]]
    request = "POST /v1/recipients"
    body = { email = "ada@example.com" }
    headers = { Idempotency-Key = "one-${run}" }
    capture = { one = "recipient.id" }
    [[steps]]
    request = "GET /v1/recipients/${one}"
    headers = { X-Own = "${own}", X-Mine = 'of "${one}", in ${one}', X-Plain = "$${one}" }
    """
    done = await compared(Books("a"), Books("zz"), scenario, allow_writes=True)
    assert done.report["result"] == "equal"
    ours, theirs = done.control.heard, done.candidate.heard
    # As long as the run has another token, a service that remembers keys does what it is asked.
    assert ours[0].headers["idempotency-key"] == "one-token"
    assert theirs[0].headers["idempotency-key"] == "one-token"
    assert ours[1].headers["x-own"] != theirs[1].headers["x-own"]
    assert ours[1].headers["x-mine"] == 'of "R-a1", in R-a1'
    assert theirs[1].headers["x-mine"] == 'of "R-zz1", in R-zz1'
    assert ours[1].headers["x-plain"] == "${one}"


async def test_an_object_that_turns_into_another_is_a_difference() -> None:
    class Confused(Books):
        def __call__(self, heard: Heard) -> Any:
            answer = super().__call__(heard)
            if heard.method == "GET" and isinstance(answer, dict) and "recipient" in answer:
                return {"ok": True, "recipient": {**answer["recipient"], "id": "R-zz7"}}
            return answer

    done = await compared(Books("a"), Confused("zz"), SCENARIO, allow_writes=True)
    assert done.differences() == [["value", "recipient.id", 1]]
    (one,) = done.report["differences"][0]["examples"]
    assert (one["control"]["text"], one["candidate"]["text"]) == ("R-a1", "R-zz7")
    assert one["note"] == "control's R-a1 was paired with candidate's R-zz1"


async def test_what_is_each_sides_own_is_taken_for_the_same_in_answers() -> None:
    books = Books("w")  # both sides write into the same account
    scenario = """
    [[steps]]
    request = "POST /v1/recipients"
    body = { email = "${own}@example.com" }
    [[steps]]
    request = "GET /v1/payments?search=${own}"
    """

    def says(heard: Heard) -> Any:
        if heard.method == "POST":
            return books(heard)
        word = heard.target.rpartition("=")[2]
        return {"found": [one for one in books.kept.values() if word in one["email"]]}

    done = await compared(says, says, scenario, allow_writes=True)
    assert done.report["result"] == "equal"
    assert len(books.kept) == len({one["email"] for one in books.kept.values()}) == 2


async def test_an_id_that_was_the_same_for_both_stays_so() -> None:
    def says(heard: Heard) -> Any:
        is_later = heard.target.endswith("B-2") and heard.headers["x-api-key"] == CANDIDATE_KEY
        return {"recipient": {"id": "R-2" if is_later else "R-1"}}

    done = await compared(says, says, "GET /v1/batches/B-1\nGET /v1/batches/B-2")
    assert done.differences() == [["value", "recipient.id", 1]]


async def test_without_leave_no_write_is_sent_and_what_needs_it_is_skipped() -> None:
    done = await compared(Books("a"), Books("b"), SCENARIO, "GET /v1/recipients")
    assert done.control.lines == done.candidate.lines == ["GET /v1/recipients"]
    told = done.report
    assert told["exit_code"] == 0
    assert [one["step"] for one in told["not_sent"]] == [1]
    assert [one["step"] for one in told["skipped"]] == [2, 3, 4, 5, 6]
    assert "write and was not sent" in told["skipped"][0]["why"]
    assert told["remarks"][0] == (
        "Not sent: 1 write, and 5 steps that need their results. "
        "--allow-writes sends them to both sides."
    )


async def test_where_nothing_could_be_compared_nothing_is_called_equal() -> None:
    done = await compared(Books("a"), Books("b"), SCENARIO)
    assert (done.report["result"], done.report["exit_code"]) == ("could not run", 2)
    assert done.control.heard == done.candidate.heard == []


async def test_steps_that_need_what_was_refused_are_skipped_and_told() -> None:
    def refuses(heard: Heard) -> Any:
        return refusal(406, "invalid_field") if heard.method == "POST" else OK

    done = await compared(refuses, refuses, SCENARIO, allow_writes=True)
    assert (done.report["result"], done.report["exit_code"]) == ("could not run", 2)
    assert {one["why"] for one in done.report["skipped"]} == {
        "needs recipient.id of step 1, but the 406 of control does not contain it"
    }
    done = await compared(Books("a"), refuses, SCENARIO, allow_writes=True)
    assert done.differences() == [["status", "@status", 1]]
    assert "but the 406 of candidate" in done.report["skipped"][0]["why"]


async def test_each_key_goes_to_its_own_side_and_to_no_other() -> None:
    steps = "\n".join(
        f'[[steps]]\nrequest = "GET /v1/batches"\nkey = "{key}"' for key in ("own", "none", "wrong")
    )
    done = await compared(ok, ok, "GET /v1/recipients\nHEAD /v1/batches", steps)
    sent = [
        [one.headers.get("x-api-key") for one in town.heard]
        for town in (done.control, done.candidate)
    ]
    wrong = "a-key-that-is-nobodys"
    assert sent == [
        [CONTROL_KEY, CONTROL_KEY, CONTROL_KEY, None, wrong],
        [CANDIDATE_KEY, CANDIDATE_KEY, CANDIDATE_KEY, None, wrong],
    ]
    for town, foreign in ((done.control, CANDIDATE_KEY), (done.candidate, CONTROL_KEY)):
        assert foreign not in json.dumps([[one.line, one.body, one.headers] for one in town.heard])


async def test_a_redirect_is_compared_and_not_followed() -> None:
    async with open_town(ok) as elsewhere:

        def redirects(_heard: Heard) -> Any:
            return Said(OK, 302, {"Location": f"{elsewhere.url}/v1/recipients"})

        done = await compared(redirects, redirects, "GET /v1/recipients")
        assert done.report["operations"][0]["statuses"] == {"302/302": 1}
        assert elsewhere.heard == []
        assert done.report["remarks"] == [
            "Both sides redirected 1 time. Redirects are not followed: give the addresses that they lead to.",
            "No answer was a success on both sides: only error responses were compared.",
        ]


async def test_cookies_are_not_kept() -> None:
    done = await compared(
        lambda _: Said(OK, headers={"Set-Cookie": "session=1; Path=/"}),
        ok,
        "GET /v1/recipients\nGET /v1/batches",
    )
    assert not [one for one in done.control.heard if "cookie" in one.headers]


@pytest.mark.parametrize("side", ["control", "candidate"])
async def test_a_side_that_cannot_be_reached_is_told_before_anything_is_sent(side: str) -> None:
    async with open_town(ok) as town:
        urls = [town.url, "http://127.0.0.1:1"]
        told = await report(urls if side == "candidate" else urls[::-1], "GET /v1/recipients")
        assert told["exit_code"] == 2
        assert told["sentence"] == (
            f"The comparison could not run: {side} at http://127.0.0.1:1 cannot be reached: "
            "cannot connect: connection refused."
        )
        assert town.heard == []


async def test_a_name_that_can_be_none_is_told_like_one_that_is_not_known() -> None:
    async with open_town(ok) as town:
        told = await report([town.url, "http://a..b"], "GET /v1/recipients")
    assert told["exit_code"] == 2
    assert told["sentence"].endswith(
        "candidate at http://a..b cannot be reached: the host name cannot be resolved."
    )


async def test_a_side_that_gives_no_answer_is_told_and_the_rest_is_compared() -> None:
    def slow(heard: Heard) -> Any:
        return Said(OK, wait=30 if "batches" in heard.target else 0)

    done = await compared(ok, slow, "GET /v1/recipients\nGET /v1/batches", seconds=0.3)
    assert done.report["exit_code"] == 2
    assert [(one["request"], one["why"]) for one in done.report["failed"]] == [
        ("GET /v1/batches", "candidate: no answer within 0.3 s")
    ]
    assert done.report["counts"]["equal"] == 1


async def test_a_difference_outranks_an_answer_that_is_wanting() -> None:
    def says(heard: Heard) -> Any:
        return Said(OK, drops=True) if "batches" in heard.target else {"ok": False}

    done = await compared(ok, says, "GET /v1/recipients\nGET /v1/batches")
    assert done.report["exit_code"] == 1
    assert len(done.report["failed"]) == 1


async def test_a_read_whose_connection_drops_is_asked_once_more_and_a_write_never() -> None:
    asked: list[str] = []

    def drops_once(heard: Heard) -> Any:
        asked.append(heard.line)
        return Said(OK, drops=asked.count(heard.line) == 1)

    writes = '[[steps]]\nrequest = "DELETE /v1/recipients/R-1"'
    done = await compared(ok, drops_once, "GET /v1/recipients", writes, allow_writes=True)
    assert asked == ["GET /v1/recipients", "GET /v1/recipients", "DELETE /v1/recipients/R-1"]
    assert done.report["counts"]["equal"] == 1
    assert done.report["failed"][0]["why"].startswith(
        "candidate: the connection was dropped; the outcome of the write"
    )


@pytest.mark.parametrize("side", ["control", "candidate"])
async def test_a_key_that_the_first_answer_refuses_ends_it(side: str) -> None:
    def refuses(_heard: Heard) -> Any:
        return refusal(403, "invalid_api_key")

    says = (refuses, ok) if side == "control" else (ok, refuses)
    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(100))
    done = await compared(*says, lines)
    assert done.report["exit_code"] == 2
    assert (
        f"{side} refuses its API key (403 invalid_api_key); check {side.upper()}_API_KEY"
        in (done.report["sentence"])
    )
    assert len(done.control.heard) < 50


@pytest.mark.parametrize("first", ["GET /v1/geography/countries/US", "GET /v1/nothing"])
async def test_a_wrong_key_ends_it_though_the_first_request_needs_none(first: str) -> None:
    def says(heard: Heard) -> Any:
        if "geography" in heard.target:
            return OK
        if "nothing" in heard.target:
            return refusal(404, "not_found")
        return refusal(403, "invalid_api_key")

    done = await compared(says, says, f"{first}\nGET /v1/recipients\nGET /v1/batches")
    assert done.report["exit_code"] == 2
    assert "control refuses its API key" in done.report["sentence"]


async def test_a_later_refusal_of_a_key_is_a_difference_like_others() -> None:
    def says(heard: Heard) -> Any:
        return refusal(403, "invalid_api_key") if "batches" in heard.target else OK

    done = await compared(ok, says, "GET /v1/recipients\nGET /v1/batches")
    assert done.differences() == [["status", "@status", 1]]


async def test_both_sides_are_asked_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def says(_heard: Heard) -> Any:
        async with asyncio.timeout(30):
            await both.wait()  # nobody gets further alone
        return OK

    done = await compared(says, says, "GET /v1/recipients\nGET /v1/batches", concurrency=1)
    assert done.report["counts"]["equal"] == 2


async def test_no_more_steps_are_under_way_than_was_said() -> None:
    def says(_heard: Heard) -> Any:
        return Said(OK, wait=0.01)

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(60))
    done = await compared(says, says, lines, concurrency=3)
    assert done.control.most_at_once == done.candidate.most_at_once == 3


async def test_reads_that_may_learn_an_id_wait_for_what_tells_it() -> None:
    """The list is slow, and yet what comes after it asks candidate by its own id."""

    def of(prefix: str) -> Any:
        def says(heard: Heard) -> Any:
            if heard.target == "/v1/recipients":
                ids = [f"R-{prefix}{number}" for number in range(3)]
                return Said({"recipients": [{"id": id_} for id_ in ids]}, wait=0.2)
            id_ = heard.target.split("/")[3]
            known = id_.startswith(f"R-{prefix}")
            return {"recipient": {"id": id_}} if known else refusal(404, "not_found")

        return says

    lines = "GET /v1/recipients\n" + "\n".join(f"GET /v1/recipients/R-a{n}" for n in range(3))
    done = await compared(of("a"), of("b"), lines, concurrency=8)
    assert done.report["result"] == "equal"
    assert sorted(done.candidate.lines[1:]) == [f"GET /v1/recipients/R-b{n}" for n in range(3)]
    assert done.report["ids"] == {"paired": 3, "spelled_differently": 3}
    assert "3 ids of 3 differ between the two sides" in done.report["remarks"][0]


async def test_recorded_traffic_is_played_with_each_sides_own_ids() -> None:
    recorded = har(
        ("POST", "https://old.example/v1/recipients", {"n": 1}, {"recipient": {"id": "R-rec"}}),
        ("GET", "https://old.example/v1/recipients/R-rec"),
        ("PATCH", "https://old.example/v1/recipients/R-rec", {"memo": "to R-rec"}),
        ("DELETE", "https://old.example/v1/recipients/R-rec"),
    )
    done = await compared(Books("a"), Books("b"), recorded, allow_writes=True)
    assert done.report["result"] == "equal"
    assert [line.split("/")[-1] for line in done.control.lines[1:]] == ["R-a1"] * 3
    assert [line.split("/")[-1] for line in done.candidate.lines[1:]] == ["R-b1"] * 3
    assert done.candidate.heard[2].body == '{"memo": "to R-b1"}'


async def test_recorded_reads_keep_ids_that_are_still_there_though_the_list_has_shifted() -> None:
    def says(heard: Heard) -> Any:
        ids = ["R-new", "R-old"]
        if heard.target == "/v1/recipients":
            return {"recipients": [{"id": id_} for id_ in ids]}
        return {"recipient": {"id": heard.target.split("/")[3]}}

    recorded = har(
        ("GET", "https://old.example/v1/recipients", None, {"recipients": [{"id": "R-old"}]}),
        ("GET", "https://old.example/v1/recipients/R-old"),
    )
    done = await compared(says, says, recorded)
    assert done.control.lines[1] == done.candidate.lines[1] == "GET /v1/recipients/R-old"


async def test_what_needs_a_recorded_write_that_is_not_sent_is_skipped() -> None:
    recorded = har(
        ("POST", "https://old.example/v1/recipients", {"n": 1}, {"recipient": {"id": "R-rec"}}),
        ("GET", "https://old.example/v1/recipients/R-rec"),
        ("GET", "https://old.example/v1/recipients"),
    )
    done = await compared(Books("a"), Books("b"), recorded)
    assert done.control.lines == ["GET /v1/recipients"]
    assert (done.report["counts"]["not_sent"], done.report["counts"]["skipped"]) == (1, 1)
    assert done.report["exit_code"] == 0


async def test_noise_is_where_control_differs_from_itself() -> None:
    numbers = itertools.count()

    def says(heard: Heard) -> Any:
        wrong = heard.headers["x-api-key"] == CANDIDATE_KEY
        return {"ok": True, "serial": next(numbers), "amount": "1.01" if wrong else "1.00"}

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(10))
    done = await compared(says, says, lines, measure_noise=True)
    assert done.differences() == [["value", "amount", 10]]
    assert [(one["path"], one["answers"]) for one in done.report["noise"]] == [("serial", 10)]
    assert len(done.control.heard) == 20
    assert len(done.candidate.heard) == 10


async def test_one_answer_in_which_control_wavers_hides_no_difference_in_others() -> None:
    asked: list[str] = []

    def control(heard: Heard) -> Any:
        asked.append(heard.target)
        wavers = heard.target.endswith("=3") and asked.count(heard.target) == 2
        return {"amount": "9.99" if wavers else "1.00"}

    def candidate(heard: Heard) -> Any:
        return {"amount": "1.01" if heard.target.endswith(("=7", "=3")) else "1.00"}

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(20))
    done = await compared(control, candidate, lines, measure_noise=True)
    assert done.differences() == [["value", "amount", 1]]
    assert [(one["path"], one["answers"]) for one in done.report["noise"]] == [("amount", 1)]
    assert done.report["counts"]["different"] == 1


async def test_values_that_waver_hide_no_field_that_is_missing_or_of_another_type() -> None:
    numbers = itertools.count()

    def control(_heard: Heard) -> Any:
        return {"ok": True, "serial": next(numbers), "seen": str(next(numbers))}

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(3))
    done = await compared(control, lambda _: {"ok": True, "seen": 1}, lines, measure_noise=True)
    assert done.differences() == [["type", "seen", 3], ["missing", "serial", 3]]
    assert done.report["counts"]["different"] == 3


async def test_fields_that_come_and_go_in_control_are_noise() -> None:
    numbers = itertools.count()

    def control(_heard: Heard) -> Any:
        return {"ok": True, "serial": 1} if next(numbers) % 2 else OK

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(3))
    done = await compared(control, ok, lines, measure_noise=True, concurrency=1)
    assert done.differences() == []
    done = await compared(control, lambda _: {"ok": True, "serial": 2}, lines, measure_noise=True)
    assert done.differences() == []


async def test_a_write_is_not_sent_twice_to_measure_noise() -> None:
    done = await compared(Books("a"), Books("b"), SCENARIO, allow_writes=True, measure_noise=True)
    assert [line for line in done.control.lines if line.startswith("POST")] == [
        "POST /v1/recipients"
    ]


async def test_a_read_is_asked_until_what_it_waits_for_is_so() -> None:
    asked = itertools.count()

    def says(heard: Heard) -> Any:
        if heard.headers["x-api-key"] == CONTROL_KEY:
            return {"batch": {"status": "complete"}}
        return {"batch": {"status": "complete" if next(asked) else "processing"}}

    step = """
    [[steps]]
    request = "GET /v1/batches/B-1"
    until = { path = "batch.status", is = "complete", within = 20 }
    """
    done = await compared(says, says, step)
    assert done.report["result"] == "equal"
    assert (len(done.control.heard), len(done.candidate.heard)) == (1, 2)


async def test_what_is_not_awaited_in_time_is_compared_as_it_is() -> None:
    def says(heard: Heard) -> Any:
        is_control = heard.headers["x-api-key"] == CONTROL_KEY
        return {"batch": {"status": "complete" if is_control else "processing"}}

    step = """
    [[steps]]
    request = "GET /v1/batches/B-1"
    until = { path = "batch.status", is = "complete", within = 0.1 }
    """
    done = await compared(says, says, step)
    assert done.differences() == [["value", "batch.status", 1]]


async def test_rules_of_a_scenario_hold_for_its_own_steps_and_are_counted() -> None:
    numbers = itertools.count()

    def says(_heard: Heard) -> Any:
        return {"serial": next(numbers)}

    scenario = """
    rules = { present = [{ path = "serial", reason = "counts every answer" }] }
    steps = [{ request = "GET /v1/recipients" }]
    """
    done = await compared(says, says, scenario, "GET /v1/recipients")
    assert done.differences() == [["value", "serial", 1]]
    (rule,) = [one for one in done.report["rules"] if one["origin"] == "input 1"]
    assert (rule["reason"], rule["used"]) == ("counts every answer", 1)


async def test_times_need_be_the_same_where_both_sides_look_at_the_same_objects() -> None:
    seconds = iter(range(60))

    def says(_heard: Heard) -> Any:
        return {"createdAt": f"2026-03-01T10:00:{next(seconds):02}.000Z"}

    write = '[[steps]]\nrequest = "POST /v1/batches"'
    reads = await compared(says, says, "GET /v1/recipients")
    assert reads.differences() == [["value", "createdAt", 1]]
    writes = await compared(says, says, write, allow_writes=True)
    assert writes.differences() == []


def differs_once_in(number: int) -> tuple[Any, Any]:
    """Two services over as many answers, one amount of one answer of candidate's wrong by a cent."""

    def of(wrong_page: int | None) -> Any:
        def says(heard: Heard) -> Any:
            page = int(re.findall(r"page=(\d+)", heard.target)[0])
            amount = f"{page}.{'01' if page == wrong_page else '00'}"
            return f'{{"ok":true,"payments":[{{"id":"P-{page}","amount":"{amount}"}}]}}'.encode()

        return says

    return of(None), of(number)


LINES = "\n".join(f"GET /v1/payments?page={page}" for page in range(10_000))


async def test_ten_thousand_equal_answers_have_no_difference() -> None:
    same, _ = differs_once_in(0)
    done = await compared(same, same, LINES, concurrency=16)
    assert done.report["sentence"] == "Equal: 10,000 answers of each side say the same."
    assert done.report["differences"] == []
    assert done.control.most_at_once <= 16


async def test_one_wrong_amount_in_ten_thousand_answers_shows() -> None:
    done = await compared(*differs_once_in(7_654), LINES, concurrency=16)
    assert done.differences() == [["value", "payments[].amount", 1]]
    (one,) = done.report["differences"][0]["examples"]
    assert (one["control"]["text"], one["candidate"]["text"]) == ("7654.00", "7654.01")
    assert one["request"] == "GET /v1/payments?page=7654"
    assert done.report["counts"]["equal"] == 9_999


async def test_a_difference_in_every_answer_is_told_once_with_a_few_examples() -> None:
    lines = "\n".join(f"GET /v1/payments?page={page}" for page in range(200))
    done = await compared(
        lambda _: {"amount": "1.00"}, lambda _: {"amount": "1.01"}, lines, examples=3
    )
    assert done.differences() == [["value", "amount", 200]]
    assert len(done.report["differences"][0]["examples"]) == 3


async def test_two_runs_over_the_same_answers_give_the_same_report() -> None:
    def wavers(heard: Heard) -> Any:
        page = int(heard.target.rpartition("=")[2])
        late = 0.02 if page % 7 == 0 else 0
        return Said({"list": [{"id": f"R-{page % 5}x", "n": page}]}, wait=late)

    def other(heard: Heard) -> Any:
        page = int(heard.target.rpartition("=")[2])
        return {"list": [{"id": f"R-{page % 3}y", "n": page}]}

    lines = "\n".join(f"GET /v1/recipients?page={page}" for page in range(40))
    reports = [await compared(wavers, other, lines, concurrency=8) for _ in range(2)]
    one, two = (done.report["differences"] for done in reports)
    assert one
    assert one == two


async def test_answers_that_are_all_refusals_are_called_that() -> None:
    done: Compared = await compared(
        lambda _: refusal(404, "not_found"), lambda _: refusal(404, "not_found"), "GET /v1/batches"
    )
    assert done.report["exit_code"] == 0
    assert done.report["remarks"] == [
        "No answer was a success on both sides: only error responses were compared."
    ]


async def test_a_limit_that_is_reached_is_told() -> None:
    done = await compared(ok, lambda _: refusal(429, "rate_limit_exceeded"), "GET /v1/batches")
    assert "Candidate answered 429 1 time: its rate limit was reached." in done.report["remarks"]


async def test_a_rule_in_a_file_is_counted_when_it_was_needed() -> None:
    rules = Rules().combine(
        build_rules({"ignore": [{"path": "x", "reason": "never read"}]}, "rules.toml")
    )
    done = await compared(lambda _: {"x": 1}, lambda _: {}, "GET /v1/batches", rules=rules)
    assert done.differences() == []
    assert [one["used"] for one in done.report["rules"] if one["path"] == "x"] == [1]
