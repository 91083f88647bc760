"""Where one request ends and the next begins."""

from __future__ import annotations

from tests.raw.rows import (
    CANARY,
    CHUNKED,
    KEYED,
    RawCase,
    build_chunked_post,
    build_get,
    build_post,
    build_raw,
)

HIDDEN = build_get(f"/v1/recipients?search={CANARY}")
"""A request inside another's body: parsed as a request, it would reach the service."""

GOES_ON = "the body, an array, is read to its end and refused"
MALFORMED = "where the body ends cannot be told: nothing after it is read"

LENGTHS: dict[str, RawCase] = {
    name: build_raw(build_post(f"{KEYED}Content-Length: {length}\r\n", "[]"), expected, reason)
    for name, length, expected, reason in [
        ("with blanks around it", "  2\t ", "406 goes on", "blanks around a value are not part of it"),
        ("with leading zeros", "0002", "406 goes on", GOES_ON),
        ("in hexadecimal", "0x2", "406 closed", MALFORMED),
        ("with an exponent", "2e0", "406 closed", MALFORMED),
        ("nothing", "", "406 closed", MALFORMED),
        ("with a plus", "+2", "406 closed", MALFORMED),
        ("with a minus", "-2", "406 closed", MALFORMED),
        ("with a point", "2.0", "406 closed", MALFORMED),
        ("with an underscore", "0_2", "406 closed", MALFORMED),
        ("in full-width digits", "\uff12", "406 closed", MALFORMED),
        ("in superscript", "\u00b2", "406 closed", MALFORMED),
        ("two numbers", "2 2", "406 closed", MALFORMED),
        ("a list", "2,2", "406 closed", MALFORMED),
        ("a list with a blank", ", 2", "406 closed", MALFORMED),
        ("with a semicolon", "2;", "406 closed", MALFORMED),
        ("in quotes", '"2"', "406 closed", MALFORMED),
        ("a vertical tab before it", "\x0b2", "406 closed", MALFORMED),
        ("minus nothing", "-0", "406 closed", MALFORMED),
        ("more than 63 bits", str(2**63), "413 lingers", "over any limit, and told so before a byte of it"),
        ("more than 64 bits", str(2**64), "406 closed", MALFORMED),
        ("2 and 64 bits", str(2**64 + 2), "406 closed", "it must not wrap round to 2"),
        ("2 and 32 bits", str(2**32 + 2), "413 lingers", "it must not wrap round to 2"),
        ("a word", CANARY, "406 closed", MALFORMED),
    ]
}  # fmt: skip

TWICE: dict[str, RawCase] = {
    "length, then chunks": build_raw(
        build_post(f"{KEYED}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", f"0\r\n\r\n{HIDDEN}"),
        "406 closed", "one reads five bytes, the other none: nobody may guess",
    ),
    "chunks, then length": build_raw(
        build_post(f"{CHUNKED}Content-Length: {len(HIDDEN) + 5}\r\n", f"0\r\n\r\n{HIDDEN}"),
        "406 closed", "the same in the other order",
    ),
    "chunks and no length": build_raw(
        build_post(f"{CHUNKED}Content-Length: 0\r\n", f"2\r\n[]\r\n0\r\n\r\n{HIDDEN}"),
        "406 closed", "the same with a length of nothing",
    ),
    "chunks and two lengths": build_raw(
        build_post(f"{CHUNKED}Content-Length: 2\r\nContent-Length: 2\r\n", "0\r\n\r\n"), "406 closed", MALFORMED
    ),
    "lengths that agree": build_raw(
        build_post(f"{KEYED}Content-Length: 2\r\nContent-Length: 2\r\n", "[]"), "406 closed", MALFORMED
    ),
    "chunks, told twice": build_raw(
        build_post(f"{CHUNKED}Transfer-Encoding: chunked\r\n", "0\r\n\r\n"), "406 closed", MALFORMED
    ),
    "lengths that differ, the longer first": build_raw(
        build_post(f"{KEYED}Content-Length: {len(HIDDEN)}\r\nContent-Length: 0\r\n", HIDDEN),
        "406 closed", "one of two readings hides a request",
    ),
    "a length too short": build_raw(
        build_post(f"{KEYED}Content-Length: 2\r\n", f"[]{CANARY}"), "406 closed",
        "what came with it is no request: of such a piece nothing is carried out",
    ),
    "an empty line after a body": build_raw(
        build_post(f"{KEYED}Content-Length: 2\r\n", "[]\r\n"), "406 goes on", "old clients send one more line end"
    ),
    "a length of nothing, and a request": build_raw(
        build_post(f"{KEYED}Content-Length: 0\r\n", build_get("/v1/none")), "406 404 goes on",
        "the second is a request of its own: no body came with the first",
    ),
}  # fmt: skip

ENCODINGS: dict[str, RawCase] = {
    name: build_raw(build_post(f"{KEYED}Transfer-Encoding: {encoding}\r\n", "2\r\n[]\r\n0\r\n\r\n"), expected, reason)
    for name, encoding, expected, reason in [
        ("in capitals", "CHUNKED", "406 goes on", "trailers are no headers of the next"),
        ("after a tab", "\tchunked", "406 goes on", "trailers are no headers of the next"),
        ("after a vertical tab", "\x0bchunked", "406 closed", MALFORMED),
        ("with a letter more", "xchunked", "406 closed", MALFORMED),
        ("with a parameter", "chunked;q=1", "406 closed", MALFORMED),
        ("in quotes", '"chunked"', "406 closed", MALFORMED),
        ("twice", "chunked, chunked", "406 closed", MALFORMED),
        ("identity", "identity", "406 closed", MALFORMED),
        ("identity before chunked", "identity, chunked", "406 closed", MALFORMED),
        ("gzip before chunked", "gzip, chunked", "406 closed", MALFORMED),
        ("deflate before chunked", "deflate, chunked", "406 closed", MALFORMED),
        ("identity after chunked", "chunked, identity", "406 closed", MALFORMED),
        ("a blank one", "", "406 closed", MALFORMED),
        ("gzip alone", "gzip", "406 closed", MALFORMED),
        ("a word", CANARY, "406 closed", MALFORMED),
    ]
}  # fmt: skip

CHUNKS: dict[str, RawCase] = {
    "leading zeros": build_raw(build_chunked_post("0000000000000002\r\n[]\r\n000\r\n\r\n"), "406 goes on", "trailers are no headers of the next"),
    "capital and small digits": build_raw(
        build_chunked_post(f"A\r\n[{' ' * 8}]\r\na\r\n{' ' * 10}\r\n0\r\n\r\n"), "406 goes on", "trailers are no headers of the next"
    ),
    "none": build_raw(build_chunked_post("0\r\n\r\n"), "406 goes on", "no JSON"),
    "letters for a size": build_raw(build_chunked_post("ZZ\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a prefix": build_raw(build_chunked_post("0x2\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a minus": build_raw(build_chunked_post("-2\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "LF for a line end": build_raw(build_chunked_post("2\n[]\n0\n\n"), "406 closed", MALFORMED),
    "a sign": build_raw(build_chunked_post("+2\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a blank before": build_raw(build_chunked_post(" 2\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a blank after": build_raw(build_chunked_post("2 \r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a tab after": build_raw(build_chunked_post("2\t\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "an underscore": build_raw(build_chunked_post("0_2\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "an empty line for a size": build_raw(build_chunked_post("\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a size that wraps to 2": build_raw(
        build_chunked_post("10000000000000002\r\n[]\r\n0\r\n\r\n"), "406 closed", "65 bits are not 2"
    ),
    "a size of 64 bits": build_raw(build_chunked_post("FFFFFFFFFFFFFFFF\r\n[]"), "ended", "the rest never comes"),
    "a quoted extension": build_raw(
        build_chunked_post(f'2;a="{CANARY}"\r\n[]\r\n0\r\n\r\n'), "406 goes on", "extensions say nothing"
    ),
    "an extension without a name": build_raw(build_chunked_post("2;\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a line end in an extension": build_raw(
        build_chunked_post("2;a\n[]\r\n0\r\n\r\n"), "406 closed", "a bare LF ends no line: servers differ on it"
    ),
    "a CR in an extension": build_raw(build_chunked_post("2;a\rb\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "a NUL in an extension": build_raw(build_chunked_post("2;a\0\r\n[]\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "an endless extension": build_raw(
        build_chunked_post(f"2;{'a' * 70_000}"), "ended", "extensions are thrown away, however long"
    ),
    "CR for a line end": build_raw(build_chunked_post("2\r[]\r0\r\r"), "406 closed", MALFORMED),
    "one byte too many": build_raw(build_chunked_post("2\r\n[]x\r\n0\r\n\r\n"), "406 closed", MALFORMED),
    "an extension of the last": build_raw(build_chunked_post("2\r\n[]\r\n0;a=b\r\n\r\n"), "406 goes on", "trailers are no headers of the next"),
    "a trailer that is a length": build_raw(
        build_chunked_post("2\r\n[]\r\n0\r\nContent-Length: 9\r\n\r\n"), "406 closed",
        "no trailer may say how long a body is",
    ),
    "a trailer without a colon": build_raw(
        build_chunked_post(f"2\r\n[]\r\n0\r\n{CANARY}\r\n\r\n"), "406 closed", MALFORMED
    ),
    "a request hidden in a trailer": build_raw(
        build_chunked_post(f"2\r\n[]\r\n0\r\nX: {HIDDEN}"), "406 goes on", "it is a trailer, no request"
    ),
    "a trailer that never ends": build_raw(
        build_chunked_post(f"2\r\n[]\r\n0\r\nX: {'a' * 70_000}"), "406 closed", MALFORMED
    ),
    "a request as a chunk": build_raw(
        build_chunked_post(f"{len(HIDDEN):x}\r\n{HIDDEN}\r\n0\r\n\r\n"), "406 goes on", "it is a body, no JSON"
    ),
}  # fmt: skip

GONE = "a client that says it is done cannot be told from one that went away"

CUT_OFF: dict[str, RawCase] = {
    "in a body": build_raw(build_post(f"{KEYED}Content-Length: 9\r\n", "[]"), "ended", GONE),
    "before a body": build_raw(build_post(f"{KEYED}Content-Length: 9\r\n"), "ended", GONE),
    "before the last chunk": build_raw(build_chunked_post("2\r\n[]\r\n"), "ended", GONE),
    "in a chunk": build_raw(build_chunked_post("9\r\n[]"), "ended", GONE),
    "after the last chunk's size": build_raw(build_chunked_post("2\r\n[]\r\n0\r\n"), "ended", GONE),
    "in the request line": build_raw("GET /v1/rec", "ended", "no request has come"),
    "before the last empty line": build_raw(build_get()[:-2], "ended", "no request has come"),
    "in a header": build_raw(f"GET /v1/recipients HTTP/1.1\r\n{KEYED}X: {CANARY}", "ended", "no request has come"),
}  # fmt: skip

FRAMING = {
    **{f"length: {name}": row for name, row in LENGTHS.items()},
    **{f"twice: {name}": row for name, row in TWICE.items()},
    **{f"transfer encoding: {name}": row for name, row in ENCODINGS.items()},
    **{f"chunk: {name}": row for name, row in CHUNKS.items()},
    **{f"cut off: {name}": row for name, row in CUT_OFF.items()},
}
