"""Parses a curl command line, given as arguments or pasted as one string, into a request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, urlsplit

DATA = ("--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
"""A bare method among the arguments is the start of a request line, as in `GET /v1/batches`."""

TAKE_A_VALUE = frozenset("AbcCDEeFHKmoPQrTtUuwXxYyzd")
"""curl's short options with a value, which may follow without a space: ``-XPOST``."""

_LONG = """
--abstract-unix-socket --cacert --capath --cert --ciphers --config --connect-timeout
--connect-to --cookie --cookie-jar --crlfile --dump-header --etag-compare --etag-save
--form --form-string --header --hsts --interface --key --limit-rate --max-redirs
--max-time --netrc-file --noproxy --oauth --output --output-dir --proxy --proxy-header
--proxy-user --referer --resolve --retry --retry-delay --retry-max-time --stderr --trace
--trace-ascii --unix-socket --upload-file --user --user-agent --write-out
"""
LONG = frozenset(_LONG.split())
"""Long options whose value is ignored. The values of other options must not look like an address.
"""

_LEADS = re.compile(r"(?:[a-z]+://|/|[\w.-]+(?::\d+)?/|v1/)", re.IGNORECASE)
_VERSION = re.compile(r"(?:^|/)v1(?:[/?#]|$)")


class NoRequest(Exception):
    """The arguments are not a request. The message is one line and quotes no header and no body."""


class Asked(NamedTuple):
    """A parsed request. ``target`` is the path with the query."""

    method: str
    target: str
    body: bytes


@dataclass(slots=True)
class Pasted:
    """The options parsed so far. ``words`` are the arguments that may be the address."""

    contents: Callable[[str], bytes]
    method: str = ""
    data: list[bytes] = field(default_factory=list)
    query: list[str] = field(default_factory=list)
    as_query: bool = False
    words: list[str] = field(default_factory=list)


def split_curl_options(words: Sequence[str], own: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates our options from curl's arguments. ``options_with_value`` lists our options that
    have a value.

    ``--json`` is both: curl's is followed by a body.
    """
    ours: list[str] = []
    pasted: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return ours, [*pasted, *rest]
        if word in ("-h", "--help") or (word == "--json" and not (rest and _is_body(rest[0]))):
            ours.append(word)
        elif word in own or word.startswith(tuple(f"{name}=" for name in own)):
            ours += [word, *([rest.pop(0)] if word in own and rest else [])]
        else:
            pasted.append(word)
            if word in DATA and rest:
                pasted.append(rest.pop(0))
    return ours, pasted


def _is_body(word: str) -> bool:
    return word.lstrip()[:1] in ("{", "[", "@")


def parse_curl(words: Sequence[str], contents: Callable[[str], bytes]) -> Asked:
    """Parses curl arguments. ``read_data_file`` reads the file of an ``@file`` value. Raises
    InvalidCurlCommand.
    """
    pasted = Pasted(contents)
    rest = iter(_split(words))
    for word in rest:
        if word.startswith("--"):
            _long(pasted, word, rest)
        elif word.startswith("-") and len(word) > 1:
            _short(pasted, word[1:], rest)
        # A request line may be pasted too: `GET /v1/batches`.
        elif word in METHODS and not pasted.method:
            pasted.method = word
        else:
            pasted.words.append(word)
    target = _target(pasted.words)
    data = b"&".join(pasted.data)
    query = pasted.query
    # curl -G moves the data to the query.
    if pasted.as_query:
        query, data = [*query, *(one.decode("utf-8", "replace") for one in pasted.data)], b""
    if query:
        target += ("&" if "?" in target else "?") + "&".join(query)
    return Asked(pasted.method.upper() or ("POST" if data else "GET"), target, data)


def _split(words: Sequence[str]) -> list[str]:
    """Splits a command line that was pasted as one argument, as a shell would."""
    found = list(words)
    # In quotes, the shell passes the whole command as one argument.
    if len(found) == 1 and re.match(r"\s*curl\s", found[0]):
        try:
            found = shlex.split(found[0].replace("\\\n", " "))
        except ValueError:
            raise NoRequest("a quotation mark in the curl command is not closed") from None
    return found[1:] if found[:1] == ["curl"] else found


def _long(pasted: Pasted, word: str, rest: Iterator[str]) -> None:
    if word == "--request":
        pasted.method = _value(word, rest)
    elif word in DATA:
        pasted.data.append(_data(pasted, _value(word, rest), word))
    elif word == "--url-query":
        pasted.query.append(_encoded(_value(word, rest)))
    elif word == "--data-urlencode":
        pasted.data.append(_encoded(_value(word, rest)).encode())
    elif word == "--url":
        pasted.words.insert(0, _value(word, rest))
    elif word == "--get":
        pasted.as_query = True
    elif word == "--head":
        pasted.method = "HEAD"
    elif word in LONG:
        _value(word, rest)


def _short(pasted: Pasted, letters: str, rest: Iterator[str]) -> None:
    """Parses combined short options; the last one may have a value."""
    for place, letter in enumerate(letters):
        if letter == "G":
            pasted.as_query = True
        elif letter == "I":
            pasted.method = "HEAD"
        elif letter in TAKE_A_VALUE:
            # The value is the rest of the word, or the next word.
            value = letters[place + 1 :] or _value(f"-{letter}", rest)
            if letter == "X":
                pasted.method = value
            elif letter == "d":
                pasted.data.append(_data(pasted, value, "-d"))
            return


def _data(pasted: Pasted, given: str, option: str) -> bytes:
    # --data-raw takes a leading @ literally.
    is_file = given.startswith("@") and option != "--data-raw"
    return pasted.contents(given[1:]) if is_file else given.encode()


def _value(word: str, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        raise NoRequest(f"{word} needs a value")
    return value


def _encoded(value: str) -> str:
    name, equals, content = value.partition("=")
    return f"{name}={quote(content)}" if equals and name else quote(content or name)


def _target(words: Sequence[str]) -> str:
    """Path and query of the address, from /v1 on: a base URL may have a path before it."""
    try:
        known = [word for word in words if _VERSION.search(urlsplit(word).path)]
    except ValueError:
        raise NoRequest("the address in the request is not a valid URL") from None
    word = next(iter(known or [word for word in words if _LEADS.match(word)]), "")
    if not word:
        raise NoRequest(
            "no address was given; write the request as curl arguments: -X POST /v1/recipients "
            "-d '{…}'"
        )
    if "://" in word:
        parts = urlsplit(word)
        path, query = parts.path or "/", parts.query
    else:
        path, _, query = word.partition("#")[0].partition("?")
        if not path.startswith(("/", "v1/")):
            path = path.partition("/")[2]  # curl accepts an address without a scheme: drop the host
        path = f"/{path.removeprefix('/')}"
    # A proxy may serve the interface below a path: /api/v1/batches.
    found = _VERSION.search(path)
    path = path[found.start() :] if found else path
    return f"{path}?{query}" if query else path
