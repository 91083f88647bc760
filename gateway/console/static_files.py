"""Static files of the console. Their URLs contain a hash of the content."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from aiohttp import web

CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILE_NAMES = ("console.css", "console.js", "icon.svg")


# Read once: the files are part of the package.
@cache
def read_static_file(name: str) -> bytes:
    return files("gateway.console").joinpath("assets", name).read_bytes()


@cache
def format_static_file_url(name: str) -> str:
    """Returns the URL of a file, which changes with the content: browsers may cache it forever."""
    return f"/assets/{name}?{hashlib.sha256(read_static_file(name)).hexdigest()[:12]}"


async def serve_static_file(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    # A list instead of the folder's content: no name, however encoded, can lead elsewhere.
    if name not in FILE_NAMES:
        raise web.HTTPNotFound
    return web.Response(
        body=read_static_file(name),
        content_type=CONTENT_TYPES[name[name.index(".") :]],
        charset="utf-8",
        headers={
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        },
    )
