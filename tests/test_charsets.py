"""Bodies that are not UTF-8: Latin-1 is read if it is declared, or if the setting says so."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Service, start_simulator

PERSON = {
    "type": "individual",
    "firstName": "Jürgen",
    "lastName": "Müller",
    "email": "j@example.com",
}
LATIN = json.dumps(PERSON, ensure_ascii=False).encode("latin-1")


@asynccontextmanager
async def open_gateway_with_legacy_settings(
    folder: Path, **legacy: str
) -> AsyncIterator[GatewayUnderTest]:
    simulator = await start_simulator(service=Service(seed=1))
    try:
        async with open_gateway(folder, simulator.url, legacy=legacy) as http_gateway:
            yield http_gateway
    finally:
        await simulator.stop()


async def create_recipient(
    gateway: GatewayUnderTest, data: bytes, content_type: str, **headers: str
) -> Any:
    headers = {"Content-Type": content_type, **headers}
    return await gateway.request("POST", "/v1/recipients", data=data, headers=headers)


@pytest.mark.parametrize(
    "charset", ["iso-8859-1", "ISO-8859-1", "latin-1", "latin1", '"iso-8859-1"']
)
async def test_declared_latin_1_is_read(tmp_path: Path, charset: str):
    async with open_gateway_with_legacy_settings(tmp_path) as http_gateway:
        response = await create_recipient(
            http_gateway, LATIN, f"application/json; charset={charset}"
        )
        assert (response.status, response.body["recipient"]["lastName"]) == (200, "Müller")


async def test_large_and_compressed_latin_1_bodies_are_read(tmp_path: Path):
    data = json.dumps({**PERSON, "unknown": "ü" * 300_000}, ensure_ascii=False).encode("latin-1")
    async with open_gateway_with_legacy_settings(tmp_path) as http_gateway:
        declared = "application/json; charset=iso-8859-1"
        for body, headers in ((data, {}), (gzip.compress(data), {"Content-Encoding": "gzip"})):
            response = await create_recipient(http_gateway, body, declared, **headers)
            assert (response.status, response.body["recipient"]["lastName"]) == (200, "Müller")


async def test_undeclared_latin_1_is_read_if_the_setting_says_so(tmp_path: Path):
    async with open_gateway_with_legacy_settings(
        tmp_path, undeclared_charset="latin-1"
    ) as http_gateway:
        response = await create_recipient(http_gateway, LATIN, "application/json")
        assert (response.status, response.body["recipient"]["lastName"]) == (200, "Müller")
        utf8 = json.dumps(PERSON, ensure_ascii=False).encode()
        for content_type in ("application/json; charset=utf-8", "application/json"):
            response = await create_recipient(http_gateway, utf8, content_type)
            assert (response.status, response.body["recipient"]["lastName"]) == (200, "Müller")


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
async def test_latin_1_body_is_refused_as_utf_8(tmp_path: Path, content_type: str):
    async with open_gateway_with_legacy_settings(tmp_path) as http_gateway:
        response = await create_recipient(http_gateway, LATIN, content_type)
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_field")


@pytest.mark.parametrize("charset", ["utf-16", "shift_jis", "nonsense"])
async def test_other_charset_is_refused_unless_the_body_is_ascii(tmp_path: Path, charset: str):
    async with open_gateway_with_legacy_settings(tmp_path) as http_gateway:
        declared = f"application/json; charset={charset}"
        response = await create_recipient(http_gateway, LATIN, declared)
        assert response.status == 406
        assert "ISO-8859-1" in response.body["errors"][0]["message"]
        ascii_only = {**PERSON, "firstName": "Ada", "lastName": "King"}
        assert (
            await create_recipient(http_gateway, json.dumps(ascii_only).encode(), declared)
        ).status == 200
