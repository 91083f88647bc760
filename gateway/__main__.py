"""The start of every command."""

import sys


def main() -> None:
    try:
        # Imported here: that takes half a second, and Ctrl-C would print a traceback meanwhile.
        from gateway.cli import main as run_command  # noqa: PLC0415

        run_command()
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report an interrupted command.
        sys.exit(130)


if __name__ == "__main__":
    main()
