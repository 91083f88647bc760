"""Parses a curl command line, given as arguments or pasted as one string, into a request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, urlsplit

DATA_OPTIONS = ("--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
"""A bare method among the arguments is the start of a request line, as in `GET /v1/batches`."""

SHORT_OPTIONS_WITH_VALUE = frozenset("AbcCDEeFHKmoPQrTtUuwXxYyzd")
"""curl's short options with a value, which may follow without a space: ``-XPOST``."""

_LONG_OPTION_NAMES = """
--abstract-unix-socket --cacert --capath --cert --ciphers --config --connect-timeout
--connect-to --cookie --cookie-jar --crlfile --dump-header --etag-compare --etag-save
--form --form-string --header --hsts --interface --key --limit-rate --max-redirs
--max-time --netrc-file --noproxy --oauth --output --output-dir --proxy --proxy-header
--proxy-user --referer --resolve --retry --retry-delay --retry-max-time --stderr --trace
--trace-ascii --unix-socket --upload-file --user --user-agent --write-out
"""
LONG_OPTIONS_WITH_VALUE = frozenset(_LONG_OPTION_NAMES.split())
"""Long options whose value is ignored; values of unknown ones may be taken for the address."""

_ADDRESS_START = re.compile(r"(?:[a-z]+://|/|[\w.-]+(?::\d+)?/|v1/)", re.IGNORECASE)
_VERSION_SEGMENT = re.compile(r"(?:^|/)v1(?:[/?#]|$)")


class InvalidCurlCommand(Exception):
    """The arguments are not a request. The message is one line and quotes no header and no body."""


class CurlRequest(NamedTuple):
    """A parsed request. ``target`` is the path with the query."""

    method: str
    target: str
    body: bytes


@dataclass(slots=True)
class ParsedOptions:
    """The options parsed so far. ``words`` are the arguments that may be the address."""

    read_data_file: Callable[[str], bytes]
    method: str = ""
    data: list[bytes] = field(default_factory=list)
    query: list[str] = field(default_factory=list)
    is_data_in_query: bool = False
    words: list[str] = field(default_factory=list)


def separate_own_and_curl_arguments(
    words: Sequence[str], options_with_value: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Separates our options from curl's arguments.

    ``options_with_value`` lists our options that have a value. ``--json`` is an option of both;
    curl's is followed by a body.
    """
    own_arguments: list[str] = []
    curl_arguments: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        # Everything after the separator is an argument of curl.
        if word == "--":
            return own_arguments, [*curl_arguments, *rest]
        if word in ("-h", "--help", "--curl") or (
            word == "--json" and not (rest and _is_likely_body(rest[0]))
        ):
            own_arguments.append(word)
        elif word in options_with_value or word.startswith(
            tuple(f"{name}=" for name in options_with_value)
        ):
            own_arguments += [word, *([rest.pop(0)] if word in options_with_value and rest else [])]
        else:
            curl_arguments.append(word)
            if word in DATA_OPTIONS and rest:
                curl_arguments.append(rest.pop(0))
    return own_arguments, curl_arguments


def _is_likely_body(word: str) -> bool:
    return word.lstrip()[:1] in ("{", "[", "@")


def parse_curl(words: Sequence[str], read_data_file: Callable[[str], bytes]) -> CurlRequest:
    """Parses curl arguments. ``read_data_file`` reads the file of an ``@file`` value. Raises
    InvalidCurlCommand.
    """
    options = ParsedOptions(read_data_file)
    rest = iter(_split_command_line(words))
    for word in rest:
        if word.startswith("--"):
            _parse_long_option(options, word, rest)
        elif word.startswith("-") and len(word) > 1:
            _parse_short_options(options, word[1:], rest)
        # A request line may be pasted too: `GET /v1/batches`.
        elif word in METHODS and not options.method:
            options.method = word
        else:
            options.words.append(word)
    target = _find_request_target(options.words)
    # curl joins the values of several -d options like this.
    data = b"&".join(options.data)
    query = options.query
    # curl -G moves the data to the query.
    if options.is_data_in_query:
        query, data = [*query, *(part.decode("utf-8", "replace") for part in options.data)], b""
    if query:
        target += ("&" if "?" in target else "?") + "&".join(query)
    return CurlRequest(options.method.upper() or ("POST" if data else "GET"), target, data)


def _split_command_line(words: Sequence[str]) -> list[str]:
    """Splits a command line that was pasted as one argument, as a shell would."""
    arguments = list(words)
    # In quotes, the shell passes the whole command as one argument.
    if len(arguments) == 1 and re.match(r"\s*curl\s", arguments[0]):
        try:
            arguments = shlex.split(arguments[0].replace("\\\n", " "))
        except ValueError:
            raise InvalidCurlCommand("a quotation mark in the curl command is not closed") from None
    return arguments[1:] if arguments[:1] == ["curl"] else arguments


def _parse_long_option(options: ParsedOptions, word: str, rest: Iterator[str]) -> None:
    if word == "--request":
        options.method = _require_option_value(word, rest)
    elif word in DATA_OPTIONS:
        options.data.append(
            _read_data_option_value(options, _require_option_value(word, rest), word)
        )
    elif word == "--url-query":
        options.query.append(_encode_query_value(_require_option_value(word, rest)))
    elif word == "--data-urlencode":
        options.data.append(_encode_query_value(_require_option_value(word, rest)).encode())
    # First, as curl prefers it: other words may only look like an address.
    elif word == "--url":
        options.words.insert(0, _require_option_value(word, rest))
    elif word == "--get":
        options.is_data_in_query = True
    elif word == "--head":
        options.method = "HEAD"
    # The value is skipped, so that it is not taken for the address.
    elif word in LONG_OPTIONS_WITH_VALUE:
        _require_option_value(word, rest)


def _parse_short_options(options: ParsedOptions, letters: str, rest: Iterator[str]) -> None:
    """Parses combined short options; the last one may have a value."""
    for place, letter in enumerate(letters):
        if letter == "G":
            options.is_data_in_query = True
        elif letter == "I":
            options.method = "HEAD"
        elif letter in SHORT_OPTIONS_WITH_VALUE:
            # The value is the rest of the word, or the next word.
            value = letters[place + 1 :] or _require_option_value(f"-{letter}", rest)
            if letter == "X":
                options.method = value
            elif letter == "d":
                options.data.append(_read_data_option_value(options, value, "-d"))
            return


def _read_data_option_value(options: ParsedOptions, value: str, option: str) -> bytes:
    # --data-raw takes a leading @ literally.
    is_file = value.startswith("@") and option != "--data-raw"
    return options.read_data_file(value[1:]) if is_file else value.encode()


def _require_option_value(word: str, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        raise InvalidCurlCommand(f"{word} needs a value")
    return value


def _encode_query_value(value: str) -> str:
    # As curl does: of `name=content` only the content is encoded.
    name, equals, content = value.partition("=")
    return f"{name}={quote(content)}" if equals and name else quote(content or name)


def _find_request_target(words: Sequence[str]) -> str:
    """Returns path and query from ``/v1`` on, because a base URL may have a path before it."""
    try:
        # A word with /v1 in its path is the address, even if another word looks like one.
        versioned_words = [word for word in words if _VERSION_SEGMENT.search(urlsplit(word).path)]
    except ValueError:
        raise InvalidCurlCommand("the address in the request is not a valid URL") from None
    word = next(iter(versioned_words or [word for word in words if _ADDRESS_START.match(word)]), "")
    if not word:
        raise InvalidCurlCommand(
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
    version_match = _VERSION_SEGMENT.search(path)
    path = path[version_match.start() :] if version_match else path
    return f"{path}?{query}" if query else path
