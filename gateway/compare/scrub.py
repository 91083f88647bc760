"""Removes API keys and personal data from recorded traffic, so that it can still be replayed.

Only known members of a HAR 1.2 entry are kept; other headers, cookies, addresses and comments are
left out. In bodies and queries, amounts, statuses, codes, times and ids stay, because a comparison
needs them (``allowlist``). Every other value is replaced by a pseudonym of the same format
(``pseudonyms``): a valid email by a valid one, an invalid IBAN by an invalid one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from gateway.compare.allowlist import is_id_kept, is_key_kept, is_number_kept, is_text_kept
from gateway.compare.operations import ID, is_public_path_part
from gateway.compare.pseudonyms import Pseudonyms
from gateway.compare.requests import SECRET
from gateway.compare.strict_json import JSON, Doubled, NotJson, Number, dumps_strict, loads_strict

LEFT_OUT = "(left out: not JSON)"

_KEPT_HEADERS = {
    "content-type",
    "date",
    "retry-after",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "access-control-allow-origin",
}
_HEADER = re.compile(r"[A-Za-z0-9 */;=.,:+-]{1,80}")
_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+(; ?charset=[A-Za-z0-9-]+)?")

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}", re.ASCII)


@dataclass(frozen=True)
class Scrubber:
    """Scrubs one recording. ``salt`` is used for all of it and stored nowhere.

    ``api_keys`` are removed from all texts. ``extra_words`` are the service's own words for terms of
    the documents; they are kept.
    """

    salt: bytes = field(repr=False)
    keys: Collection[str] = field(default=(), repr=False)
    words: Collection[str] = ()

    @property
    def _made_up(self) -> Pseudonyms:
        return Pseudonyms(self.salt)

    def har(self, har: Mapping[str, Any]) -> dict[str, Any]:
        """Scrubs a HAR as decoded by ``json.loads``."""
        log = har["log"]
        creator = log.get("creator") or {}
        known = {name: str(creator.get(name, "")) for name in ("name", "version")}
        entries = [self.entry(one) for one in log["entries"]]
        return {"log": {"version": "1.2", "creator": known, "entries": entries}}

    def entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Scrubs one entry of ``log.entries``."""
        began = str(entry.get("startedDateTime", ""))
        return {
            "startedDateTime": began if re.fullmatch(r"[0-9T:.Z+-]{10,40}", began) else "",
            "time": _number(entry.get("time")),
            "request": self._request(entry["request"]),
            "response": self._response(entry.get("response") or {}),
            "cache": {},
            "timings": {"send": 0, "wait": _number(entry.get("time")), "receive": 0},
        }

    def body(self, text: str) -> str:
        """Scrubs a JSON text. Other content is left out: nothing is known about its fields."""
        if not text:
            return ""
        try:
            return self._without_keys(dumps_strict(self._value(loads_strict(text.encode()), ())))
        except (NotJson, RecursionError, UnicodeEncodeError):
            return LEFT_OUT

    def url(self, url: str) -> str:
        parts = urlsplit(url)
        path = "/".join(map(self._part, parts.path.split("/")))
        query = "&".join(self._parameters(parts.query))
        host = parts.netloc.rpartition("@")[2]
        origin = f"{parts.scheme}://{host}" if host else ""
        return self._without_keys(f"{origin}{path}?{query}" if query else f"{origin}{path}")

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        url = self.url(str(request["url"]))
        query = [one.partition("=") for one in urlsplit(url).query.split("&") if one]
        scrubbed = {
            "method": re.sub(r"[^A-Z]", "", str(request["method"]).upper())[:10],
            "url": url,
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": self._headers(request.get("headers") or ()),
            "queryString": [
                {"name": unquote(name), "value": unquote(value)} for name, _, value in query
            ],
            "headersSize": -1,
            "bodySize": -1,
        }
        if posted := request.get("postData"):
            kind = str(posted.get("mimeType", ""))
            scrubbed["postData"] = {
                "mimeType": kind if _TYPE.fullmatch(kind) else "",
                "text": self.body(str(posted.get("text") or "")),
            }
        return scrubbed

    def _response(self, response: Mapping[str, Any]) -> dict[str, Any]:
        status = int(_number(response.get("status")))
        content = response.get("content") or {}
        kind = str(content.get("mimeType", ""))
        text = self.body(_content(content))
        return {
            "status": status,
            "statusText": HTTPStatus(status).phrase if status in {*HTTPStatus} else "",
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": self._headers(response.get("headers") or ()),
            "content": {
                "size": len(text.encode(errors="replace")),
                "mimeType": kind if _TYPE.fullmatch(kind) else "",
                "text": text,
            },
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": -1,
        }

    def _headers(self, headers: Collection[Mapping[str, Any]]) -> list[dict[str, str]]:
        named = [(str(one.get("name", "")), str(one.get("value", ""))) for one in headers]
        return [
            {"name": name, "value": self._without_keys(value)}
            for name, value in named
            if name.lower() in _KEPT_HEADERS and _HEADER.fullmatch(value)
        ]

    def _parameters(self, query: str) -> Iterator[str]:
        for one in query.split("&"):
            name, mark, value = one.partition("=")
            if not name or SECRET.fullmatch(name):
                continue
            made = self._text(unquote(value.replace("+", " ")), (name,))
            yield f"{self._key(name)}{mark}{quote(made, safe='')}"

    def _part(self, part: str) -> str:
        known = part in self.words or is_public_path_part(part)
        return part if known and (is_id_kept(part) or not ID.fullmatch(part)) else self._token(part)

    def _key(self, key: str) -> str:
        return key if is_key_kept(key, self.words) else self._token(key)

    def _token(self, text: str) -> str:
        """Replaces a text by a token. An id stays an id of its kind."""
        kind = text[:2] if ID.fullmatch(text) else ""
        return f"{kind}{self._made_up.token(text)}"

    def _value(self, value: JSON, fields: tuple[str, ...]) -> JSON:
        if isinstance(value, Doubled):
            made = Doubled(
                (self._key(key), self._value(one, (*fields, key))) for key, one in value.items()
            )
            made.again = {
                self._key(key): [self._value(one, (*fields, key)) for one in every]
                for key, every in value.again.items()
            }
            return made
        if isinstance(value, dict):
            return {self._key(key): self._value(one, (*fields, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(item, fields) for item in value]
        if isinstance(value, Number):
            clear = is_number_kept(fields, value.text)
            return value if clear else Number(self._made_up.number(value.text))
        return self._text(value, fields) if isinstance(value, str) else value

    def _text(self, text: str, fields: tuple[str, ...]) -> str:
        if is_text_kept(fields, text, self.words):
            return text
        if ID.fullmatch(text):
            return self._token(text)
        if _EMAIL.fullmatch(text):
            return self._made_up.email(text)
        if _IBAN.fullmatch(text) and _checks(text):
            return self._made_up.iban(text)
        if _DAY.fullmatch(text):
            return self._made_up.day(text)
        return self._made_up.words(text)

    def _without_keys(self, text: str) -> str:
        for key in self.keys:
            text = text.replace(key, "********")
        return text


def _checks(iban: str) -> bool:
    """Whether the check digits of an IBAN are valid. An invalid one must stay invalid."""
    plain = re.sub(r"[ -]", "", iban).upper()
    return int("".join(str(int(one, 36)) for one in plain[4:] + plain[:4])) % 97 == 1


def _content(content: Mapping[str, Any]) -> str:
    text = str(content.get("text") or "")
    if content.get("encoding") != "base64":
        return text
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, ValueError):
        return LEFT_OUT


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e9 else 0
