"""nginx with Lua, if it is installed: OpenResty, or nginx with its Lua module and lua-cjson."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOM = Path(__file__).parent / "contestants"
MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
"""The second needs the first."""

FOLDERS = ("/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/etc/nginx/modules")


def prepare_nginx(folder: Path, port: int, service_port: int) -> list[str] | str:
    """The command that starts it with a configuration in ``folder``, or the reason why it cannot start."""
    binary = shutil.which("openresty") or shutil.which("nginx")
    if binary is None:
        return "it is not installed"
    modules = _find_modules(binary)
    if modules is None:
        return "it has no Lua module; Debian has it in libnginx-mod-http-lua"
    folder.mkdir()
    written = (
        (ROOM / "nginx.conf")
        .read_text()
        .format(
            modules="\n".join(f"load_module {one};" for one in modules),
            folder=folder,
            room=ROOM,
            port=port,
            service=service_port,
        )
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(written)
    words = [binary, "-c", str(configuration), "-p", str(folder), "-e", str(folder / "error.log")]
    tried = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
    if tried.returncode:
        first = (tried.stderr.strip().splitlines() or ["it says nothing"])[0]
        return f"it does not start: {first}"
    return words


def _find_modules(binary: str) -> list[Path] | None:
    """The modules to load for Lua, empty if built in; None if Lua is missing."""
    told = subprocess.run([binary, "-V"], capture_output=True, text=True, check=False).stderr
    if "ngx_lua" in told or "lua-nginx-module" in told:
        return []
    for folder in map(Path, FOLDERS):
        found = [folder / one for one in MODULES]
        if all(one.exists() for one in found):
            return found
    return None
