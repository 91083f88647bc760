"""Runs the shipped configurations of HAProxy and nginx in front of a gateway."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.processes import find_free_port, is_listening

PROXIES = Path(__file__).parent.parent / "deploy" / "proxies"


def write_haproxy_configuration(port: int, gateway_port: int, folder: Path) -> list[str]:
    text = (PROXIES / "haproxy.cfg").read_text("utf-8")
    text = re.sub(r"bind :443 ssl .*", f"bind 127.0.0.1:{port}", text)
    text = re.sub(r"server gateway .*", f"server gateway 127.0.0.1:{gateway_port}", text)
    text = re.sub(r"maxconn \d+", "maxconn 200", text)
    text = text.replace("    option httpchk GET /healthz\n", "")
    (folder / "haproxy.cfg").write_text(text, "utf-8")
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def write_nginx_configuration(port: int, gateway_port: int, folder: Path) -> list[str]:
    text = (PROXIES / "nginx.conf").read_text("utf-8")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{gateway_port}")
    text = re.sub(r"listen 443 ssl;", f"listen 127.0.0.1:{port};", text)
    text = re.sub(r"\n\s+ssl_.*", "", text)
    full_configuration = f"""
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {text}
}}
"""
    (folder / "nginx.conf").write_text(full_configuration, "utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


@asynccontextmanager
async def run_load_balancer(name: str, gateway_port: int, folder: Path) -> AsyncIterator[int]:
    """Runs ``haproxy`` or ``nginx`` with the shipped file, without TLS; yields its port."""
    port = find_free_port()
    command = {"haproxy": write_haproxy_configuration, "nginx": write_nginx_configuration}[name](
        port, gateway_port, folder
    )
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PATH": path}, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while not is_listening(port):
                assert process.returncode is None, f"{name} ended: {command}"
                await asyncio.sleep(0.05)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
