"""Bodies, their encodings, and bytes after them."""

from __future__ import annotations

import gzip
import json
import zlib

from tests.raw.rows import (
    CANARY,
    HOST,
    KEYED,
    LIST,
    RawCase,
    build_chunked_post,
    build_get,
    build_post,
    build_raw,
    build_sized_post,
)

NO_JSON = "no JSON"
NO_OBJECT = "JSON, and no object"
REFUSED = "JSON, and more than is taken"
ADA = json.dumps(
    {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
)
MADE = ("POST /v1/recipients",)
LATIN, COMMENT = ADA.encode("latin-1")[:-1] + b"\xe4}", ADA.replace(",", ",/* */", 1)

TEXTS: dict[str, RawCase] = {
    name: build_raw(build_sized_post(body), "406 goes on", reason)
    for name, body, reason in [
        ("blanks", "   \r\n\t ", NO_JSON),
        ("a comment", COMMENT, NO_JSON),
        ("a trailing comma", ADA[:-1] + ",}", NO_JSON),
        ("single quotes", ADA.replace('"', "'"), NO_JSON),
        ("keys without quotes", "{type:1}", NO_JSON),
        ("two objects", ADA + ADA, NO_JSON),
        ("something after it", f"{ADA} {CANARY}", NO_JSON),
        ("something before it", f")]}}',\n{ADA}", NO_JSON),
        ("a NUL before it", f"\0{ADA}", NO_JSON),
        ("Python", "{'type': None, 'a': True}", NO_JSON),
        ("XML", f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///{CANARY}">]><a>&b;</a>', NO_JSON),
        ("a form", f"type=individual&email={CANARY}", NO_JSON),
        ("a word", CANARY, NO_JSON),
        ("half an escape", '{"type":"\\u00"}', NO_JSON),
        ("an escape that is none", '{"type":"\\x41"}', NO_JSON),
        ("a line end in text", '{"type":"a\nb"}', NO_JSON),
        ("NaN", '{"type":NaN}', NO_JSON),
        ("minus infinity", '{"type":-Infinity}', NO_JSON),
        ("a number with leading zeros", '{"type":007}', NO_JSON),
        ("a number in hexadecimal", '{"type":0x7}', NO_JSON),
        ("null", "null", NO_OBJECT),
        ("a number", "12", NO_OBJECT),
        ("text", f'"{CANARY}"', NO_OBJECT),
        ("a list of objects", f"[{ADA}]", NO_OBJECT),
        ("the same key twice", ADA[:-1] + ',"type":"business"}', "which is meant cannot be told"),
        ("the same key twice, one escaped", ADA[:-1] + ',"\\u0074ype":"business"}', "the same"),
        ("the same key twice, deep inside", ADA[:-1] + ',"x":[{"a":1,"a":2}]}', "the same"),
        ("a lone surrogate", ADA[:-1] + ',"language":"\\ud800"}', "no text: it could not be sent on"),
        ("a lone surrogate as a key", ADA[:-1] + ',"\\udfff":1}', "the same"),
        ("surrogates in the wrong order", ADA[:-1] + ',"x":"\\udca9\\ud83d"}', "the same"),
        ("65 levels", '{"x":' * 65 + "1" + "}" * 65, REFUSED),
        ("20,000 levels", '{"x":' * 15_000 + "1" + "}" * 15_000, REFUSED),
        ("20,000 levels that are not closed", '{"x":[' * 10_000, REFUSED),
        ("20,000 brackets", "[" * 20_000, REFUSED),
        ("a number of 5,000 digits", f'{{"x":{"9" * 5000}}}', REFUSED),
        ("a number with 5,000 decimals", f'{{"x":0.{"9" * 5000}}}', REFUSED),
        ("a number of a billion digits", '{"x":1e999999999}', REFUSED),
        ("a number a billion digits small", '{"x":1e-999999999}', REFUSED),
        ("an exponent that is no number", f'{{"x":1e{"9" * 400}}}', REFUSED),
        ("every field an object", json.dumps({name: {"$gt": ""} for name in json.loads(ADA)}), "fields are text"),
        ("every field a list", json.dumps({name: [CANARY] for name in json.loads(ADA)}), "fields are text"),
        ("every field true", json.dumps(dict.fromkeys(json.loads(ADA), True)), "fields are text"),
        ("only unknown fields", f'{{"__proto__":{{"type":"{CANARY}"}},"constructor":1}}', "what is required is missing"),
        ("an empty key", '{"":""}', "what is required is missing"),
    ]
}  # fmt: skip

GOOD: dict[str, RawCase] = {
    name: build_raw(build_sized_post(body, following_data), "200 goes on", reason, *MADE)
    for name, body, following_data, reason in [
        ("a byte order mark", f"\ufeff{ADA}", "", "some editors write one"),
        ("blanks around it", f"\r\n {ADA} \r\n", "", "as JSON allows"),
        ("letters escaped", ADA.replace("Ada", "\\u0041da"), "", "as JSON allows"),
        ("a pair of surrogates", ADA.replace("Ada", "\\ud83d\\udca9"), "", "one character"),
        ("a NUL in text", ADA.replace("Ada", "A\\u0000da"), "", "the service decides"),
        ("other scripts", ADA.replace("Ada", "\u202eadA\u0000"[:4] + "日本"), "", "the service decides"),
        ("64 levels that nobody reads", ADA[:-1] + ',"x":' + "[" * 63 + "]" * 63 + "}", "", "unknown fields are passed over"),
        ("1e400 that nobody reads", ADA[:-1] + ',"x":1e400}', "", "the same"),
        ("1,000 unknown fields", ADA[:-1] + "".join(f',"x{n}":{n}' for n in range(1000)) + "}", "", "the same"),
        ("another charset told", ADA, "Content-Type: application/json; charset=utf-16\r\n", "JSON is UTF-8 (RFC 8259)"),
        ("a charset nobody knows", ADA, f"Content-Type: application/json; charset={CANARY}\r\n", "the same"),
        ("a type that is none", ADA, f"Content-Type: {CANARY};;=\r\n", "whatever its type"),
        ("an encoding nobody knows", ADA, f"Content-Encoding: {CANARY}\r\n", "as it is, it can be read"),
        ("a form's type", ADA, "Content-Type: multipart/form-data; boundary=a\r\n", "whatever its type"),
        ("gzip", gzip.compress(ADA.encode()), "Content-Encoding: gzip\r\n", "as it says"),
        ("GZIP in capitals", gzip.compress(ADA.encode()), "Content-Encoding: GZIP\r\n", "as it says"),
        ("deflate", zlib.compress(ADA.encode()), "Content-Encoding: deflate\r\n", "as it says"),
        ("identity", ADA, "Content-Encoding: identity\r\n", "as it is"),
    ]
}  # fmt: skip

ENCODED: dict[str, RawCase] = {
    "Latin-1": build_raw(build_sized_post(LATIN), "406 goes on", "JSON is UTF-8"),
    "UTF-16, and told so": build_raw(
        build_sized_post(ADA.encode("utf-16"), "Content-Type: application/json; charset=utf-16\r\n"), "406 goes on", "JSON is UTF-8"
    ),
    "UTF-16 without a mark": build_raw(build_sized_post(ADA.encode("utf-16-be")), "406 goes on", "JSON is UTF-8"),
    "UTF-7": build_raw(build_sized_post(ADA.replace('"', "+ACI-")), "406 goes on", "JSON is UTF-8"),
    "UTF-8 that is longer than it need be": build_raw(build_sized_post(ADA.encode().replace(b"Ada", b"\xc0\x80")), "406 goes on", "no UTF-8"),
    "UTF-8 of a surrogate": build_raw(build_sized_post(ADA.encode().replace(b"Ada", b"\xed\xa0\x80")), "406 goes on", "no UTF-8"),
    "UTF-8 that is cut off": build_raw(build_sized_post(ADA.encode()[:-2] + b"\xe2\x82"), "406 goes on", "no UTF-8"),
    "gzip inside of gzip": build_raw(
        build_sized_post(gzip.compress(gzip.compress(ADA.encode())), "Content-Encoding: gzip\r\n"), "406 goes on", "decoded once"
    ),
    "gzip, told twice": build_raw(
        build_sized_post(gzip.compress(gzip.compress(ADA.encode())), "Content-Encoding: gzip, gzip\r\n"), "406 goes on", "nobody sends it"
    ),
    "gzip and something after it": build_raw(
        build_sized_post(gzip.compress(ADA.encode()) + CANARY.encode(), "Content-Encoding: gzip\r\n"), "406 goes on", "no gzip"
    ),
    "gzip of nothing": build_raw(build_sized_post(gzip.compress(b""), "Content-Encoding: gzip\r\n"), "406 goes on", NO_JSON),
    "nothing, as gzip": build_raw(build_sized_post("", "Content-Encoding: gzip\r\n"), "406 goes on", NO_JSON),
    "gzip that is not told": build_raw(build_sized_post(gzip.compress(ADA.encode())), "406 goes on", "no UTF-8"),
    "two types": build_raw(
        build_sized_post(ADA, "Content-Type: text/xml\r\nContent-Type: text/html\r\n"), "406 closed", "nobody sends it"
    ),
    "gzip that grows over the limit": build_raw(
        build_sized_post(gzip.compress(b" " * 20_000_000), "Content-Encoding: gzip\r\n"), "413 closed", "what it becomes counts"
    ),
    "gzip in gzip chunks": build_raw(
        build_chunked_post("2\r\n{}\r\n0\r\n\r\n", "Content-Encoding: gzip\r\n"), "406 goes on", "no gzip"
    ),
}  # fmt: skip

AFTER: dict[str, RawCase] = {
    "over the limit": build_raw(
        build_post(f"{KEYED}Content-Length: 200000\r\n", "[") + " " * 199_999, "413 closed", "told at once; the rest is thrown away"
    ),
    "over the limit in chunks": build_raw(
        build_chunked_post("30d40\r\n" + " " * 200_000 + "\r\n0\r\n\r\n"), "413 closed", "counted as it comes"
    ),
    "a body where none is asked for": build_raw(
        build_post(f"{KEYED}Content-Length: {len(build_get())}\r\n", build_get()).replace("POST", "GET", 1), "200 closed", "dropped, not read as a request", *LIST
    ),
    "chunks where none are asked for": build_raw(
        build_chunked_post("2\r\n{}\r\n0\r\n\r\n").replace("POST", "GET", 1), "200 closed", "dropped", *LIST
    ),
    "a body, and no key": build_raw(
        build_post(f"{HOST}Content-Length: {len(build_get())}\r\n", build_get()), "403 goes on", "passed over, not read as a request"
    ),
    "a body, and no path": build_raw(
        build_post(f"{KEYED}Content-Length: {len(build_get())}\r\n", build_get(), "/v1/none"), "404 goes on", "passed over, not read as a request"
    ),
    "an expectation, and the body with it": build_raw(
        build_sized_post("[]", "Expect: 100-CONTINUE\r\n"), "100 406 goes on", "as if it had waited"
    ),
    "an expectation, and no key": build_raw(
        build_post(f"{HOST}Content-Length: 2\r\nExpect: 100-continue\r\n", "[]"), "403 goes on", "it is not asked for the body"
    ),
    "an expectation, and no path": build_raw(
        build_sized_post("[]", "Expect: 100-continue\r\n", "/v1/none"), "404 goes on", "it is not asked for the body"
    ),
    "an expectation nobody knows": build_raw(build_sized_post("[]", f"Expect: {CANARY}\r\n"), "406 goes on", "passed over"),
    "two expectations": build_raw(build_sized_post("[]", "Expect: 100-continue, x\r\n"), "406 goes on", "passed over"),
    "two good requests at once": build_raw(build_get() + build_get(), "200 200 goes on", "one after the other", *LIST, *LIST),
    "200 requests at once": build_raw(build_get("/v1/none") * 200, "404 " * 200 + "goes on", "one after the other"),
    "requests of two clients at once": build_raw(
        build_get() + build_get(headers=HOST) + build_get(), "200 403 200 goes on", "a key is of its own request", *LIST, *LIST
    ),
    "a good request and nonsense at once": build_raw(
        build_get() + CANARY + "\r\n\r\n", "406 closed", "of a piece that is malformed nothing is carried out"
    ),
    "what follows a close": build_raw(
        build_get(headers=f"{KEYED}Connection: close\r\n") + build_get(), "406 closed", "of a piece that is malformed nothing is carried out"
    ),
    "an empty line after a close": build_raw(
        build_sized_post("[]", "Connection: close\r\n") + b"\r\n", "406 closed", "old clients send one more line end"
    ),
    "an upgrade with a body": build_raw(
        build_sized_post("[]", "Connection: Upgrade\r\nUpgrade: h2c\r\n"), "406 stays", "not taken up"
    ),
    "something after an upgrade": build_raw(
        build_get(headers=f"{KEYED}Connection: Upgrade\r\nUpgrade: h2c\r\n") + build_get("/v1/none"), "200 404 goes on", "not taken up: the second is a request like any other", *LIST
    ),
}  # fmt: skip

BODIES = {
    **{f"body: {name}": row for name, row in TEXTS.items()},
    **{f"good body: {name}": row for name, row in GOOD.items()},
    **{f"encoded body: {name}": row for name, row in ENCODED.items()},
    **{f"after: {name}": row for name, row in AFTER.items()},
}
