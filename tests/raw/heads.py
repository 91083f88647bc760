"""Request lines and headers."""

from __future__ import annotations

from tests.raw.rows import CANARY, HOST, KEYED, LIST, RawCase, build_get, build_post, build_raw
from tests.running_gateway import KEY

API_KEY = KEY["api_key"]
NO_PATH = "no operation has this path, as it was written"
NO_METHOD = "no path has this method"
MALFORMED = "servers differ in how they read it"

TARGETS: dict[str, RawCase] = {
    name: build_raw(build_get(target), expected, reason)
    for name, target, expected, reason in [
        ("an encoded slash at the end", "/v1/recipients%2F", "404 goes on", NO_PATH),
        ("an encoded slash between", "/v1%2Frecipients", "404 goes on", NO_PATH),
        ("an encoded letter", "/%76%31/recipients", "404 goes on", NO_PATH),
        ("encoded dots, half of them", "/v1/recipients/.%2e/profile/submerchant", "404 goes on", NO_PATH),
        ("encoded dots", "/v1/recipients/%2e%2e%2fprofile%2fsubmerchant", "404 goes on", NO_PATH),
        ("dots encoded twice", "/v1/recipients/%252e%252e/profile", "404 goes on", NO_PATH),
        ("dots encoded too long", "/v1/recipients/%c0%ae%c0%ae/profile", "404 goes on", NO_PATH),
        ("dots with a parameter", "/v1/recipients/R-1/..;/profile", "404 goes on", NO_PATH),
        ("backslashes", "/v1/recipients/..\\..\\profile", "404 goes on", NO_PATH),
        ("encoded backslashes", "/v1/recipients/R-1%5c..%5cbatches", "404 goes on", NO_PATH),
        ("a parameter of the last part", "/v1/recipients/R-1;x=1/logs", "404 goes on", NO_PATH),
        ("two slashes before the host's place", "//elsewhere.example/v1/recipients", "404 goes on", NO_PATH),
        ("three slashes", "///v1/recipients", "404 goes on", NO_PATH),
        ("an address inside the path", "/http://elsewhere.example/v1/recipients", "404 goes on", NO_PATH),
        ("an @ after the version", "/v1@elsewhere.example/recipients", "404 goes on", NO_PATH),
        ("an id and an encoded query", "/v1/recipients/R-1%3fsearch=a", "404 goes on", NO_PATH),
        ("an id with a plus", "/v1/recipients/R-1+1", "404 goes on", NO_PATH),
        ("an id of another kind", "/v1/recipients/A-1", "404 goes on", NO_PATH),
        ("an id that is a word of code", "/v1/recipients/__proto__", "404 goes on", NO_PATH),
        ("an id that is SQL", "/v1/recipients/R-1'--", "404 goes on", NO_PATH),
        ("an id that is a wildcard", "/v1/recipients/R-%25", "404 goes on", NO_PATH),
        ("an id of 64 characters and one", f"/v1/recipients/R-{'1' * 65}", "404 goes on", NO_PATH),
        ("a payment of no batch", "/v1/batches//payments/P-1", "404 goes on", NO_PATH),
        ("the service's own path of a summary", "/v1/batch/B-1/summary", "404 goes on", NO_PATH),
        ("the service's own path of the balance", "/v1/balance", "404 goes on", NO_PATH),
        ("a partner's path", "/v1/profile/submerchant", "404 goes on", NO_PATH),
        ("the service's accounts", "/v1/recipients/R-1/accounts/A-1", "404 goes on", NO_PATH),
        ("the root", "/", "404 goes on", NO_PATH),
        ("a capital letter", "/v1/Recipients", "404 goes on", NO_PATH),
        ("the admin's page", "/metrics", "404 goes on", NO_PATH),
        ("a country that is none", "/v1/geography/countries/%00", "404 goes on", NO_PATH),
        ("a country in letters that fold to it", "/v1/geography/countries/%C3%9F", "404 goes on", NO_PATH),
        ("a path of 8,000 letters", f"/v1/{'a' * 8000}", "404 goes on", NO_PATH),
        ("a path of 9,000 letters", f"/v1/{CANARY * 700}", "406 closed", "longer than any line may be"),
        ("a path in Latin-1", b"/v1/r\xe9cipients".decode("latin-1"), "406 closed", MALFORMED),
        ("a path in Cyrillic", "/v1/r\u0435cipients", "406 closed", MALFORMED),
        ("a query in Latin-1", b"/v1/recipients?search=\xff".decode("latin-1"), "406 closed", MALFORMED),
        ("a blank in the path", "/v1/reci pients", "406 closed", MALFORMED),
        ("a tab in the path", "/v1/reci\tpients", "406 closed", MALFORMED),
        ("a NUL in the path", "/v1/recipients\0", "406 closed", MALFORMED),
        ("nothing", "", "406 closed", MALFORMED),
        ("a broken escape", "/v1/recipients/%zz", "404 goes on", NO_PATH),
        ("an address without a path", "http://gateway", "404 goes on", NO_PATH),
        ("an address of another scheme", "ftp://gateway/v1/recipients", "404 goes on", NO_PATH),
        ("a DEL in the path", "/v1/recipients\x7f", "406 closed", MALFORMED),
        ("only a fragment", "#", "406 closed", MALFORMED),
        ("an asterisk", "*", "406 closed", "that is for OPTIONS"),
        ("a host and port", "gateway:80", "406 closed", "that is for CONNECT"),
        ("a scheme and no host", "http:///v1/recipients", "406 closed", MALFORMED),
        ("a scheme and no slashes", "http:/v1/recipients", "406 closed", MALFORMED),
        ("two schemes", "http://http://elsewhere.example/v1/recipients", "404 goes on", NO_PATH),
        ("a scheme of files", "file:///etc/passwd", "406 closed", MALFORMED),
        ("a scheme of code", f"javascript:{CANARY}", "406 closed", MALFORMED),
    ]
}  # fmt: skip

GOOD_TARGETS: dict[str, RawCase] = {
    name: build_raw(build_get(target), "200 goes on", reason, *LIST, *calls)
    for name, target, reason, *calls in [
        ("an address of its own", "http://gateway/v1/recipients", "the path counts"),
        ("an address elsewhere", "http://elsewhere.example:81/v1/recipients", "no host is ever taken from it"),
        ("an address with credentials", f"http://{CANARY}:x@gateway/v1/recipients", "they say nothing"),
        ("a fragment", "/v1/recipients#/../batches", "a fragment is no part of a path"),
        ("two question marks", "/v1/recipients??page=1?&page=2", "the first begins the query"),
        ("a thousand parameters", f"/v1/recipients?{'&a=b' * 1000}", "unknown ones are passed over"),
        ("an encoded line end in the query", f"/v1/recipients?sortBy=%0d%0aX-{CANARY}:%201", "words that make no sense"),
        ("a line end in what goes upstream", f"/v1/recipients?payoutMethod=bank-transfer&payoutCurrency=%0d%0aX-{CANARY}:1", "no currency: nobody has it, and the service is not asked for it", *LIST),
        ("a long word in what goes upstream", f"/v1/recipients?payoutMethod=bank-transfer&payoutCurrency={'%22' * 2500}", "the same", *LIST),
        ("a parameter of the service's own", "/v1/recipients?name=a&tags=b&accounts=c", "unknown here, so not passed on"),
        ("a broken escape in the query", "/v1/recipients?search=%zz&page=%", "as it is written"),
        ("brackets and quotes in the query", '/v1/recipients?search[]="<{a}>"|`^', "as they are written"),
    ]
}  # fmt: skip

METHODS: dict[str, RawCase] = {
    "in two cases": build_raw(build_get(method="Get"), "406 closed", "methods are in capitals"),
    "with a comma": build_raw(build_get(method="GET,"), "406 closed", MALFORMED),
    "with a slash": build_raw(build_get(method="GET/"), "406 closed", MALFORMED),
    "with an accent": build_raw(build_get(method="G\u00c9T"), "406 closed", MALFORMED),
    "with a NUL": build_raw(build_get(method="GE\0T"), "406 closed", MALFORMED),
    "of 300 letters": build_raw(build_get(method="A" * 300), "406 closed", MALFORMED),
    "a word and a secret": build_raw(build_get(method=CANARY), "406 closed", MALFORMED),
    "none": build_raw(build_get(method=""), "406 closed", MALFORMED),
    "a blank before it": build_raw(build_get(method=" GET"), "406 closed", MALFORMED),
    "QUERY": build_raw(build_get(method="QUERY"), "404 goes on", NO_METHOD),
    "M-SEARCH": build_raw(build_get(method="M-SEARCH"), "404 goes on", NO_METHOD),
    "PRI": build_raw(build_get(method="PRI"), "406 closed", "the beginning of another protocol"),
    "HTTP/2's preface": build_raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "406 closed", "another protocol"),
    "TRACE": build_raw(build_get(method="TRACE", headers=f"{KEYED}X-Own: {CANARY}\r\n"), "404 goes on", "what was sent is never told back"),
    "CONNECT to a path": build_raw(build_get(method="CONNECT"), "404 goes on", NO_METHOD),
    "CONNECT elsewhere": build_raw(build_get("elsewhere.example:443", method="CONNECT") + CANARY, "406 closed", "no tunnel: what follows would be a request, and is no good one"),
    "CONNECT elsewhere, and nothing after it": build_raw(build_get("elsewhere.example:443", method="CONNECT"), "404 stays", "no tunnel"),
    "OPTIONS of everything": build_raw(build_get("*", method="OPTIONS"), "404 goes on", NO_PATH),
    "HEAD": build_raw(build_get(method="HEAD"), "404 goes on", NO_METHOD),
    "HEAD of nothing": build_raw(build_get("/v1/none", method="HEAD"), "404 goes on", NO_PATH),
    "PUT with a body": build_raw(build_post(f"{KEYED}Content-Length: 2\r\n", "{}").replace("POST", "PUT", 1), "404 goes on", NO_METHOD),
    "OPTIONS with a body": build_raw(build_post(f"{HOST}Content-Length: 2\r\n", "{}").replace("POST", "OPTIONS", 1), "200 goes on", "answered here"),
    "OPTIONS of nothing": build_raw(build_get("/v1/none", method="OPTIONS"), "404 goes on", NO_PATH),
    "OPTIONS of an address elsewhere": build_raw(build_get("http://elsewhere.example/v1/recipients", HOST, "OPTIONS"), "200 goes on", "answered here"),
    "another method by a header": build_raw(build_get(headers=f"{KEYED}X-HTTP-Method-Override: DELETE\r\nX-HTTP-Method: DELETE\r\n"), "200 goes on", "the request line counts", *LIST),
}  # fmt: skip

VERSIONS: dict[str, RawCase] = {
    name: build_raw(build_get(version=version), expected, reason, *calls)
    for name, version, expected, reason, *calls in [
        ("1.0", "HTTP/1.0", "200 closed", "one request a connection", *LIST),
        ("1.2", "HTTP/1.2", "406 closed", "there is none"),
        ("1.10", "HTTP/1.10", "406 closed", MALFORMED),
        ("01.1", "HTTP/01.1", "406 closed", MALFORMED),
        ("1", "HTTP/1", "406 closed", MALFORMED),
        ("0.9", "HTTP/0.9", "406 closed", "it has no status to answer with"),
        ("2.0", "HTTP/2.0", "406 closed", "another protocol"),
        ("3", "HTTP/3", "406 closed", "another protocol"),
        ("1.x", "HTTP/1.x", "406 closed", MALFORMED),
        ("-1.1", "HTTP/-1.1", "406 closed", MALFORMED),
        ("11.1", "HTTP/11.1", "406 closed", MALFORMED),
        ("in small letters", "http/1.1", "406 closed", MALFORMED),
        ("of another protocol", "ICAP/1.0", "406 closed", MALFORMED),
        ("a blank inside", "HTTP /1.1", "406 closed", MALFORMED),
        ("a blank after", "HTTP/1.1 ", "406 closed", MALFORMED),
        ("two blanks before", " HTTP/1.1", "200 goes on", "there is one way to read it", *LIST),
        ("none", "", "406 closed", MALFORMED),
        ("a word", CANARY, "406 closed", MALFORMED),
    ]
}  # fmt: skip

AROUND: dict[str, RawCase] = {
    "1.0 that wants to stay": build_raw(build_get(version="HTTP/1.0", headers=f"{KEYED}Connection: keep-alive\r\n"), "200 goes on", "as it asked", *LIST),
    "1.0 without a host": build_raw(build_get(version="HTTP/1.0", headers=f"X-API-Key: {API_KEY}\r\n"), "200 closed", "1.0 has none", *LIST),
    "1.0 with chunks": build_raw(build_post(f"{KEYED}Transfer-Encoding: chunked\r\n", "2\r\n[]\r\n0\r\n\r\n").replace("1.1", "1.0", 1), "406 closed", "1.0 has none, and proxies differ"),
    "1.0 without a length": build_raw(build_post(KEYED, "{}").replace("1.1", "1.0", 1), "406 closed", "no body came"),
    "empty lines before it": build_raw(f"\r\n\r\n\r\n{build_get()}", "200 goes on", "old clients send them", *LIST),
    "blanks before it": build_raw(f"  {build_get()}", "406 closed", MALFORMED),
    "a byte order mark before it": build_raw(f"\ufeff{build_get()}", "406 closed", MALFORMED),
    "only blanks": build_raw(b"    \r\n\r\n", "406 closed", MALFORMED),
    "JSON alone": build_raw(f'{{"a":"{CANARY}"}}\r\n\r\n', "406 closed", MALFORMED),
    "an answer for a request": build_raw(f"HTTP/1.1 200 OK\r\nX: {CANARY}\r\n\r\n", "406 closed", MALFORMED),
    "a line of a mail server": build_raw(f"EHLO {CANARY}\r\n", "406 closed", MALFORMED),
    "a handshake of SSH": build_raw(f"SSH-2.0-{CANARY}\r\n", "406 closed", MALFORMED),
    "a command of a database": build_raw(f"*1\r\n$4\r\n{CANARY}\r\n", "406 closed", MALFORMED),
    "tabs for blanks": build_raw(build_get().replace(" ", "\t", 2), "406 closed", MALFORMED),
    "a line that never ends": build_raw(f"GET /{'a' * 70_000}", "406 closed", "longer than any line may be"),
    "a TLS hello": build_raw(bytes.fromhex("1603010200010001fc0303") + b"\0" * 32, "406 closed", MALFORMED),
    "NULs": build_raw(b"\0" * 64, "406 closed", MALFORMED),
    "LF for each line end": build_raw(build_get().replace("\r\n", "\n"), "406 closed", MALFORMED),
    "CR for each line end": build_raw(build_get().replace("\r\n", "\r"), "406 closed", MALFORMED),
    "a length for no body": build_raw(build_post(KEYED), "406 goes on", "no JSON"),
    "random bytes": build_raw(bytes(range(128, 256)) * 4 + b"\r\n\r\n", "406 closed", MALFORMED),
}  # fmt: skip

NAMES: dict[str, RawCase] = {
    f"{character!a} in a name": build_raw(build_get(headers=f"{KEYED}X{character}Own: {CANARY}\r\n"), "406 closed", "no character of a name")
    for character in ' (),/;<=>?@[]{}"\\\x00\x0b\x7f\u00e4'
}  # fmt: skip

HEADERS: dict[str, RawCase] = {
    name: build_raw(build_get(headers=headers), expected, reason, *calls)
    for name, headers, expected, reason, *calls in [
        ("folded with a tab", f"{KEYED}X: a\r\n\t{CANARY}\r\n", "406 closed", "folding is read in two ways"),
        ("folded with blanks only", f"{KEYED}X: a\r\n   \r\n", "406 closed", "the same"),
        ("a folded Host", f"Host: gate\r\n way\r\nX-API-Key: {API_KEY}\r\n", "406 closed", "the same"),
        ("no Host", f"X-API-Key: {API_KEY}\r\n", "406 closed", "1.1 has one"),
        ("two Hosts", f"Host: other\r\n{KEYED}", "406 closed", "proxies differ on which counts"),
        ("a blank before the first", f" X: a\r\n{KEYED}", "406 closed", "folding is read in two ways"),
        ("no colon", f"{KEYED}{CANARY}\r\n", "406 closed", MALFORMED),
        ("a blank before the colon", f"{KEYED}X : {CANARY}\r\n", "406 closed", MALFORMED),
        ("a NUL in a value", f"{KEYED}X: {CANARY}\0b\r\n", "406 closed", MALFORMED),
        ("a CR in a value", f"{KEYED}X: a\rb\r\n", "406 closed", MALFORMED),
        ("LF after one", f"{KEYED}X: a\n", "406 closed", MALFORMED),
        ("a value of 9,000 letters", f"{KEYED}X: {'a' * 9000}\r\n", "406 closed", "nobody sends one as long"),
        ("a name of 9,000 letters", f"{KEYED}{CANARY * 700}: a\r\n", "406 closed", "nobody sends one as long"),
        ("only a colon", f"{KEYED}:\r\n", "406 closed", MALFORMED),
        ("a tab before the colon", f"{KEYED}X\t: a\r\n", "406 closed", MALFORMED),
        ("LF, then CR", f"{KEYED}X: a\n\rY: b\r\n", "406 closed", MALFORMED),
        ("two CRs", f"{KEYED}X: a\r\r\n", "406 closed", MALFORMED),
        ("a DEL in a value", f"{KEYED}X: a\x7fb\r\n", "406 closed", MALFORMED),
        ("UTF-8 in a value", f"{KEYED}X: {CANARY}é日本\r\n", "200 goes on", "passed over", *LIST),
        ("an empty Host", f"Host:\r\nX-API-Key: {API_KEY}\r\n", "200 goes on", "the gateway has no use for it", *LIST),
        ("a Host elsewhere", f"Host: elsewhere.example\r\nX-API-Key: {API_KEY}\r\n", "200 goes on", "the same", *LIST),
        ("two Hosts that agree", f"{HOST}{KEYED}", "406 closed", "proxies differ on which counts"),
        ("a hundred headers", KEYED + "".join(f"X{n}: a\r\n" for n in range(100)), "200 goes on", "proxies add many", *LIST),
        ("500 headers", KEYED + "".join(f"X{n}: a\r\n" for n in range(500)), "406 closed", "nobody sends as many"),
        ("one of 1 MB", f"{KEYED}X: {CANARY * 80_000}\r\n", "406 closed", "nobody sends one as long"),
        ("a key twice, once empty", f"{KEYED}X-API-Key:\r\n", "403 goes on", "which is meant cannot be told"),
        ("two keys with a comma", f"{HOST}X-API-Key: {API_KEY},{API_KEY}\r\n", "403 goes on", "no key has a comma"),
        ("a key and a canary", f"{KEYED}x-api-key: {CANARY}\r\n", "403 goes on", "which is meant cannot be told"),
        ("a key named by Connection", f"{KEYED}Connection: close, X-API-Key\r\n", "200 closed", "the client's own words", *LIST),
        ("a key with a semicolon", f"{HOST}X-API-Key: {API_KEY}; a=b\r\n", "403 goes on", "no key has one"),
        ("a key, percent-encoded", f"{HOST}X-API-Key: an%2Dapi-key-for-tests\r\n", "403 goes on", "headers are not decoded"),
        ("a path by a header", f"{KEYED}X-Original-URL: /v1/batches\r\nX-Rewrite-URL: /v1/batches\r\nX-Forwarded-Prefix: /x\r\n", "200 goes on", "the request line counts", *LIST),
        ("an address by a header", f"{KEYED}X-Forwarded-Host: elsewhere.example\r\nForwarded: host={CANARY}\r\n", "200 goes on", "no host is ever taken from it", *LIST),
        ("a range", f"{KEYED}Range: bytes=0-1\r\n", "200 goes on", "answers are whole", *LIST),
        ("a condition", f"{KEYED}If-None-Match: *\r\nIf-Modified-Since: {CANARY}\r\n", "200 goes on", "answers are not kept", *LIST),
        ("other languages wanted", f"{KEYED}Accept: text/html\r\nAccept-Encoding: br\r\nAccept-Charset: utf-16\r\n", "200 goes on", "an answer is JSON, as it is", *LIST),
        ("an upgrade to h2c", f"{KEYED}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", "200 stays", "not taken up", *LIST),
        ("an upgrade to a websocket", f"{KEYED}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "200 goes on", "not taken up", *LIST),
        ("an upgrade to nothing", f"{KEYED}Connection: Upgrade\r\n", "200 goes on", "not taken up", *LIST),
        ("an upgrade to TLS", f"{KEYED}Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n", "200 stays", "not taken up", *LIST),
        ("an expectation of a GET", f"{KEYED}Expect: 100-continue\r\n", "200 goes on", "there is no body to wait for", *LIST),
        ("an odd request id", f"{KEYED}X-Request-Id: <{CANARY}>\r\n", "200 goes on", "not taken: another is made", *LIST),
    ]
}  # fmt: skip

HEADS = {
    **{f"target: {name}": row for name, row in (TARGETS | GOOD_TARGETS).items()},
    **{f"method: {name}": row for name, row in METHODS.items()},
    **{f"version: {name}": row for name, row in VERSIONS.items()},
    **{f"around: {name}": row for name, row in AROUND.items()},
    **{f"header: {name}": row for name, row in (NAMES | HEADERS).items()},
}
