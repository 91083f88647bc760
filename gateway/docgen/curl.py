"""Parses a curl command line, given as arguments or pasted as one string, into a request."""

import argparse
import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from gateway.config import OperatorError

DATA_OPTIONS = ("--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
"""A bare method among the arguments is the start of a request line, as in `GET /v1/batches`."""

_FLAGS = "0123456#:afgijkLlMnNOpqRsSvVZ"
_IGNORED_SHORT_OPTIONS = "AbcCDEeHKmoPQrtUuwxYyz"
_IGNORED_LONG_OPTIONS = """
abstract-unix-socket cacert capath cert ciphers config connect-timeout connect-to cookie cookie-jar
crlfile dump-header etag-compare etag-save header hsts interface key limit-rate
max-redirs max-time netrc-file noproxy oauth output output-dir proxy proxy-header proxy-user referer
resolve retry retry-delay retry-max-time stderr trace trace-ascii unix-socket user user-agent
write-out
"""
"""Options whose value is skipped; the value of an unknown option may be taken for the address."""

_ADDRESS_START = re.compile(r"(?:[a-z]+://|/|[\w.-]+(?::\d+)?/|v1/)", re.IGNORECASE)
_VERSION_SEGMENT = re.compile(r"(?:^|/)v1(?:[/?#]|$)")


class InvalidRequestText(OperatorError):
    """The text is no request of the legacy interface. The message quotes no header and no body."""


class CurlRequest(NamedTuple):
    """A parsed request. ``target`` is the path with the query."""

    method: str
    target: str
    body: bytes


def separate_own_and_curl_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates the options of `explain` from curl's arguments.

    ``--json`` is an option of both; curl's is followed by a body.
    """
    own_arguments, curl_arguments, rest = list[str](), list[str](), list(words)
    while rest:
        word = rest.pop(0)
        # Everything after the separator is an argument of curl.
        if word == "--":
            return own_arguments, [*curl_arguments, *rest]
        if word in ("-h", "--help", "--curl") or (
            word == "--json" and not (rest and rest[0].lstrip()[:1] in ("{", "[", "@"))
        ):
            own_arguments.append(word)
        elif word.partition("=")[0] == "--config":
            value_count = int("=" not in word)
            own_arguments += [word, *rest[:value_count]]
            del rest[:value_count]
        else:
            value_count = int(word in DATA_OPTIONS)
            curl_arguments += [word, *rest[:value_count]]
            del rest[:value_count]
    return own_arguments, curl_arguments


def parse_curl(words: Sequence[str], read_data_file: Callable[[str], bytes]) -> CurlRequest:
    """Parses curl arguments. ``read_data_file`` reads the file of an ``@file`` value. Raises
    InvalidRequestText.
    """
    try:
        options, rest = _build_parser(read_data_file).parse_known_args(_split_command_line(words))
    # Only the option's name, because the message may quote a value.
    except argparse.ArgumentError as error:
        option, *_ = str(error.argument_name).split("/")
        raise InvalidRequestText(f"{option} needs a value") from None
    if options.unsupported_body:
        raise InvalidRequestText(
            "a form (-F) or an uploaded file (-T) cannot be explained, because the legacy interface "
            "accepts JSON only; give the body with -d"
        )
    # Options that the parser does not know are left over too.
    addresses = [word for word in rest if not word.startswith("-")]
    if not options.data and any(word.lstrip().startswith(("{", "[")) for word in addresses):
        raise InvalidRequestText("a body is given without -d before it")
    # A request line may be pasted too: `GET /v1/batches`.
    method = options.method or next((word for word in addresses if word in METHODS), "")
    target = _find_request_target(options.url + [word for word in addresses if word not in METHODS])
    # curl joins the values of several -d options like this.
    data, query = b"&".join(options.data), options.query
    # curl -G moves the data to the query.
    if options.is_data_in_query:
        query, data = [*query, *(part.decode("utf-8", "replace") for part in options.data)], b""
    if query:
        target += ("&" if "?" in target else "?") + "&".join(query)
    return CurlRequest(method.upper() or ("POST" if data else "GET"), target, data)


def _build_parser(read_data_file: Callable[[str], bytes]) -> argparse.ArgumentParser:
    def read_data(value: str) -> bytes:
        return read_data_file(value[1:]) if value.startswith("@") else os.fsencode(value)

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-X", "--request", dest="method", default="")
    parser.add_argument("-I", "--head", dest="method", action="store_const", const="HEAD")
    parser.add_argument("-G", "--get", dest="is_data_in_query", action="store_true")
    # First among the addresses, as curl prefers it: other words may only look like one.
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--url-query", dest="query", type=_encode, action="append", default=[])
    readers: dict[str, Callable[[str], bytes]] = dict.fromkeys(("-d", *DATA_OPTIONS), read_data)
    # It takes a leading @ literally.
    readers["--data-raw"] = os.fsencode
    readers["--data-urlencode"] = lambda value: os.fsencode(_encode(value))
    for name, reader in readers.items():
        parser.add_argument(name, dest="data", type=reader, action="append", default=[])
    forms_and_files = ("-F", "--form", "--form-string", "-T", "--upload-file")
    parser.add_argument(*forms_and_files, dest="unsupported_body", action="append")
    for letter in _FLAGS:
        parser.add_argument(f"-{letter}", dest="ignored", action="store_true")
    for letter in _IGNORED_SHORT_OPTIONS:
        parser.add_argument(f"-{letter}", dest="ignored")
    for name in _IGNORED_LONG_OPTIONS.split():
        parser.add_argument(f"--{name}", dest="ignored")
    return parser


def _split_command_line(words: Sequence[str]) -> list[str]:
    """Splits a command line that was pasted as one argument, as a shell would."""
    arguments = list(words)
    # In quotes, the shell passes the whole command as one argument.
    if len(arguments) == 1:
        try:
            # Forms send line ends as CRLF.
            arguments = shlex.split(re.sub(r"\\\r?\n", " ", arguments[0]))
        except ValueError:
            raise InvalidRequestText("unclosed quote: paste the whole command") from None
    return arguments[1:] if arguments[:1] == ["curl"] else arguments


def _encode(value: str) -> str:
    # As curl does: of `name=content` only the content is encoded.
    name, equals, content = value.partition("=")
    is_named = equals and name
    encoded = quote(os.fsencode(content if is_named else content or name))
    return f"{name}={encoded}" if is_named else encoded


def _find_request_target(words: Sequence[str]) -> str:
    """Returns path and query from ``/v1`` on, because a base URL may have a path before it."""
    try:
        # A word with /v1 in its path is the address, even if another word looks like one.
        versioned_words = [word for word in words if _VERSION_SEGMENT.search(urlsplit(word).path)]
    except ValueError:
        raise InvalidRequestText("the address in the request is not a valid URL") from None
    word = next(iter(versioned_words or [word for word in words if _ADDRESS_START.match(word)]), "")
    if not word:
        raise InvalidRequestText(
            "no address was given; write the request as curl arguments: -X POST /v1/recipients "
            "-d '{…}'"
        )
    if not re.match(r"[a-z]+://|/|v1/", word, re.IGNORECASE):
        word = f"//{word}"  # curl accepts an address without a scheme
    parts = urlsplit(word)
    path = f"/{parts.path.removeprefix('/')}"
    # A proxy may serve the interface below a path: /api/v1/batches.
    version_match = _VERSION_SEGMENT.search(path)
    path = path[version_match.start() :] if version_match else path
    return f"{path}?{parts.query}" if parts.query else path
