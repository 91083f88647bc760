"""Reads configuration files and files with secrets."""

from __future__ import annotations

import stat
from pathlib import Path


class ConfigurationError(Exception):
    """Raised if the configuration is invalid; each problem is one line for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        location = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigurationError([f"{path}: there is no such file{location}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path}: not UTF-8 text"]) from None


def read_secret_file(path: Path) -> str:
    text = read_text(path)
    status = path.stat()
    # The group may read it, as in a Kubernetes volume with fsGroup. A pipe's mode is ignored.
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
        raise ConfigurationError([f"{path}: every user can read it; run `chmod o= {path}`"])
    return text
