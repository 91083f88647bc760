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

from gateway.compare.allowlist import (
    is_id_kept_in_recording,
    is_key_kept_in_recording,
    is_number_kept_in_recording,
    is_text_kept_in_recording,
)
from gateway.compare.operations import OBJECT_ID, is_public_path_part
from gateway.compare.pseudonyms import Pseudonyms
from gateway.compare.requests import SECRET_PARAMETER
from gateway.compare.strict_json import (
    JSON,
    DuplicateKeyObject,
    InvalidJson,
    Number,
    dumps_strict,
    loads_strict,
)

OMITTED_BODY = "(left out: not JSON)"

_KEPT_HEADERS = {
    "content-type",
    "date",
    "retry-after",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "access-control-allow-origin",
}
_HEADER_VALUE = re.compile(r"[A-Za-z0-9 */;=.,:+-]{1,80}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+(; ?charset=[A-Za-z0-9-]+)?")

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_IBAN = re.compile(r"[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}", re.ASCII)


@dataclass(frozen=True)
class Scrubber:
    """Scrubs one recording. ``salt`` is used for all of it and stored nowhere.

    ``api_keys`` are removed from all texts. ``extra_words`` are the service's own words for terms of
    the documents; they are kept.
    """

    salt: bytes = field(repr=False)
    api_keys: Collection[str] = field(default=(), repr=False)
    extra_words: Collection[str] = ()

    @property
    def _pseudonyms(self) -> Pseudonyms:
        return Pseudonyms(self.salt)

    def scrub_har(self, har: Mapping[str, Any]) -> dict[str, Any]:
        """Scrubs a HAR as decoded by ``json.loads``."""
        log = har["log"]
        creator = log.get("creator") or {}
        scrubbed_creator = {name: str(creator.get(name, "")) for name in ("name", "version")}
        entries = [self.scrub_har_entry(entry) for entry in log["entries"]]
        return {"log": {"version": "1.2", "creator": scrubbed_creator, "entries": entries}}

    def scrub_har_entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Scrubs one entry of ``log.entries``."""
        started = str(entry.get("startedDateTime", ""))
        return {
            "startedDateTime": started if re.fullmatch(r"[0-9T:.Z+-]{10,40}", started) else "",
            "time": _sanitize_har_number(entry.get("time")),
            "request": self._scrub_request(entry["request"]),
            "response": self._scrub_response(entry.get("response") or {}),
            "cache": {},
            "timings": {"send": 0, "wait": _sanitize_har_number(entry.get("time")), "receive": 0},
        }

    def scrub_body(self, text: str) -> str:
        """Scrubs a JSON text. Other content is left out: nothing is known about its fields."""
        if not text:
            return ""
        try:
            return self._remove_api_keys(
                dumps_strict(self._scrub_value(loads_strict(text.encode()), ()))
            )
        except (InvalidJson, RecursionError, UnicodeEncodeError):
            return OMITTED_BODY

    def scrub_url(self, url: str) -> str:
        parts = urlsplit(url)
        path = "/".join(map(self._scrub_path_part, parts.path.split("/")))
        query = "&".join(self._scrub_parameters(parts.query))
        # The part before @ would contain a user and a password.
        host = parts.netloc.rpartition("@")[2]
        origin = f"{parts.scheme}://{host}" if host else ""
        return self._remove_api_keys(f"{origin}{path}?{query}" if query else f"{origin}{path}")

    def _scrub_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        url = self.scrub_url(str(request["url"]))
        query = [
            parameter.partition("=") for parameter in urlsplit(url).query.split("&") if parameter
        ]
        scrubbed = {
            # A method is sent by the client too, and could contain anything.
            "method": re.sub(r"[^A-Z]", "", str(request["method"]).upper())[:10],
            "url": url,
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": self._scrub_headers(request.get("headers") or ()),
            "queryString": [
                {"name": unquote(name), "value": unquote(value)} for name, _, value in query
            ],
            # HAR 1.2: -1 is an unknown size. The recorded sizes would not fit the scrubbed message.
            "headersSize": -1,
            "bodySize": -1,
        }
        if post_data := request.get("postData"):
            media_type = str(post_data.get("mimeType", ""))
            scrubbed["postData"] = {
                "mimeType": media_type if _MEDIA_TYPE.fullmatch(media_type) else "",
                "text": self.scrub_body(str(post_data.get("text") or "")),
            }
        return scrubbed

    def _scrub_response(self, response: Mapping[str, Any]) -> dict[str, Any]:
        status = int(_sanitize_har_number(response.get("status")))
        content = response.get("content") or {}
        media_type = str(content.get("mimeType", ""))
        text = self.scrub_body(_decode_content(content))
        return {
            "status": status,
            # The standard text: a server may write anything there.
            "statusText": HTTPStatus(status).phrase if status in {*HTTPStatus} else "",
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": self._scrub_headers(response.get("headers") or ()),
            "content": {
                "size": len(text.encode(errors="replace")),
                "mimeType": media_type if _MEDIA_TYPE.fullmatch(media_type) else "",
                "text": text,
            },
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": -1,
        }

    def _scrub_headers(self, headers: Collection[Mapping[str, Any]]) -> list[dict[str, str]]:
        names_and_values = [
            (str(header.get("name", "")), str(header.get("value", ""))) for header in headers
        ]
        return [
            {"name": name, "value": self._remove_api_keys(value)}
            for name, value in names_and_values
            if name.lower() in _KEPT_HEADERS and _HEADER_VALUE.fullmatch(value)
        ]

    def _scrub_parameters(self, query: str) -> Iterator[str]:
        for parameter in query.split("&"):
            name, separator, value = parameter.partition("=")
            if not name or SECRET_PARAMETER.fullmatch(name):
                continue
            replacement = self._scrub_text(unquote(value.replace("+", " ")), (name,))
            yield f"{self._scrub_field_name(name)}{separator}{quote(replacement, safe='')}"

    def _scrub_path_part(self, part: str) -> str:
        is_known = part in self.extra_words or is_public_path_part(part)
        return (
            part
            if is_known and (is_id_kept_in_recording(part) or not OBJECT_ID.fullmatch(part))
            else self._replace_by_token(part)
        )

    def _scrub_field_name(self, key: str) -> str:
        return (
            key if is_key_kept_in_recording(key, self.extra_words) else self._replace_by_token(key)
        )

    def _replace_by_token(self, text: str) -> str:
        """Replaces a text by a token. An id stays an id of its kind."""
        id_prefix = text[:2] if OBJECT_ID.fullmatch(text) else ""
        return f"{id_prefix}{self._pseudonyms.make_token(text)}"

    def _scrub_value(self, value: JSON, fields: tuple[str, ...]) -> JSON:
        if isinstance(value, DuplicateKeyObject):
            # A replay must send the same malformed body, so duplicate keys stay.
            scrubbed = DuplicateKeyObject(
                (self._scrub_field_name(key), self._scrub_value(field_value, (*fields, key)))
                for key, field_value in value.items()
            )
            scrubbed.again = {
                self._scrub_field_name(key): [
                    self._scrub_value(field_value, (*fields, key)) for field_value in items
                ]
                for key, items in value.again.items()
            }
            return scrubbed
        if isinstance(value, dict):
            return {
                self._scrub_field_name(key): self._scrub_value(field_value, (*fields, key))
                for key, field_value in value.items()
            }
        if isinstance(value, list):
            return [self._scrub_value(item, fields) for item in value]
        if isinstance(value, Number):
            is_kept = is_number_kept_in_recording(fields, value.text)
            return value if is_kept else Number(self._pseudonyms.make_number(value.text))
        return self._scrub_text(value, fields) if isinstance(value, str) else value

    def _scrub_text(self, text: str, fields: tuple[str, ...]) -> str:
        if is_text_kept_in_recording(fields, text, self.extra_words):
            return text
        if OBJECT_ID.fullmatch(text):
            # An id that the allow-list refuses: of digits alone, or in a personal field.
            return self._replace_by_token(text)
        if _EMAIL.fullmatch(text):
            return self._pseudonyms.make_email(text)
        if _IBAN.fullmatch(text) and _has_valid_check_digits(text):
            return self._pseudonyms.make_iban(text)
        if _DATE.fullmatch(text):
            return self._pseudonyms.make_date(text)
        return self._pseudonyms.make_words(text)

    def _remove_api_keys(self, text: str) -> str:
        for key in self.api_keys:
            text = text.replace(key, "********")
        return text


def _has_valid_check_digits(iban: str) -> bool:
    """Whether the check digits of an IBAN are valid. An invalid one must stay invalid."""
    plain = re.sub(r"[ -]", "", iban).upper()
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


def _decode_content(content: Mapping[str, Any]) -> str:
    text = str(content.get("text") or "")
    if content.get("encoding") != "base64":
        return text
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, ValueError):
        return OMITTED_BODY


def _sanitize_har_number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e9 else 0
