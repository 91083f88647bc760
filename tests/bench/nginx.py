"""nginx with Lua, if it is installed: OpenResty, or nginx with its Lua module and lua-cjson."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CONTESTANT_FOLDER = Path(__file__).parent / "contestants"
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
    text = (
        (CONTESTANT_FOLDER / "nginx.conf")
        .read_text()
        .format(
            modules="\n".join(f"load_module {module};" for module in modules),
            folder=folder,
            room=CONTESTANT_FOLDER,
            port=port,
            service=service_port,
        )
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(text)
    command = [binary, "-c", str(configuration), "-p", str(folder), "-e", str(folder / "error.log")]
    process = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    if process.returncode:
        first_error_line = (process.stderr.strip().splitlines() or ["it says nothing"])[0]
        return f"it does not start: {first_error_line}"
    return command


def _find_modules(binary: str) -> list[Path] | None:
    """The modules to load for Lua, empty if built in; None if Lua is missing."""
    version_text = subprocess.run(
        [binary, "-V"], capture_output=True, text=True, check=False
    ).stderr
    if "ngx_lua" in version_text or "lua-nginx-module" in version_text:
        return []
    for folder in map(Path, FOLDERS):
        module_files = [folder / file for file in MODULES]
        if all(file.exists() for file in module_files):
            return module_files
    return None
