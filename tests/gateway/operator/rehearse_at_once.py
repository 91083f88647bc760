"""The command, of which no rehearsal waits until times differ: ``python -m`` with its arguments."""

from gateway.cli import main
from gateway.operator.rehearsal import run

run.TIMESTAMP_SECONDS = 0
main()
