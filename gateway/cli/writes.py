"""`payout-gateway writes`: lists writes in doubt and records the outcome an operator found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import (
    Commands,
    ask_confirmation,
    document,
    json_option,
    moment,
    yes_option,
)
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.operator.in_doubt_writes import Unsettled, Word


@click.group(cls=Commands)
def writes() -> None:
    """Manage writes in doubt: sent, but not answered."""


@writes.command("unsettled")
@json_option
@config_option
def unsettled(*, as_json: bool, settings: Settings) -> None:
    """List writes in doubt and what to do about each. The exit code is 0 even if there are some.

    A write is in doubt if it was sent but not answered and the gateway could not yet read its
    outcome from the service. The gateway resolves most of them within a minute. Until then, the
    object cannot be changed, and a retry of the request gets an error. Writes in progress are not
    listed; to tell them apart, the command may watch for a few seconds.
    """
    from gateway.operator.in_doubt_writes import load_in_doubt_writes
    from gateway.storage import open_store

    async def done() -> list[Unsettled]:
        async with open_store(settings.state, create=False) as store:
            return await load_in_doubt_writes(store)

    found = run_to_completion(done())
    if as_json:
        document({"writes": [_as_json(one) for one in found]})
    elif not found:
        click.echo("No write is in doubt.")
    else:
        click.echo("\n\n".join(_in_words(one) for one in found))


def _as_json(each: Unsettled) -> dict[str, Any]:
    one, write = each.one, each.write
    return {
        "write": each.id,
        "merchant": one.owner.merchant,
        "environment": one.owner.environment,
        "operation": one.operation,
        "key": one.key_name,
        "request_id": one.request_id,
        "since": moment(write.entered_at),
        "method": write.method,
        "path": write.path,
        "object": each.object,
        "state": write.state,
        "why": each.why,
        "told": write.told,
        "what_to_do": each.to_do,
    }


def _in_words(each: Unsettled) -> str:
    one, write = each.one, each.write
    lines = [
        f"{each.id}  {write.method} {write.path}  since {moment(write.entered_at)}",
        f"    request:     {one.owner}, {one.operation}, key {one.key_name}"
        + (f", {each.object}" if each.object else ""),
        f"    reason:      {each.why}",
        *([f"    recorded:    {_found(write.told)}"] if write.told else []),
        f"    what to do:  {each.to_do}",
    ]
    return "\n".join(lines)


def _found(told: str) -> str:
    from gateway.storage.journal_states import in_words
    from gateway.storage.undertakings import TOLD

    return in_words(told) if told in TOLD else f"made {told}"


@writes.command("settle")
@click.argument("write")
@click.option("--happened", is_flag=True, help="The service carried it out.")
@click.option(
    "--did-not-happen",
    is_flag=True,
    help="The service did not carry it out; the request may be sent again.",
)
@click.option("--made", metavar="ID", help="The service carried it out and created this object.")
@yes_option
@json_option
@config_option
def settle(
    *,
    write: str,
    happened: bool,
    did_not_happen: bool,
    made: str | None,
    yes: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Record the outcome of WRITE, an id that `writes unsettled` lists.

    Check the service first: the outcome decides whether money is sent again. Give exactly one of
    --happened, --did-not-happen and --made. A running gateway uses it within two seconds. If the
    gateway can see at the service that the write happened, that takes precedence.
    """
    from gateway.operator.in_doubt_writes import (
        NotSettled,
        Word,
        check_operator_verdict,
        find_in_doubt_write,
        record_operator_verdict,
    )
    from gateway.storage import open_store

    if [happened, did_not_happen, made is not None].count(True) != 1:
        raise click.UsageError("give exactly one of --happened, --did-not-happen and --made ID")
    word = Word(happened or made is not None, made)

    # Checked before the prompt, so that an impossible verdict fails without a question.
    async def asked() -> str:
        async with open_store(settings.state, create=False) as store:
            one, row = await find_in_doubt_write(store, write)
            check_operator_verdict(row, word)
            return f"{row.method} {row.path} of {one.owner}, {moment(row.entered_at)}"

    # The checks are repeated here: the state may change while the prompt is open.
    async def done() -> Unsettled:
        async with open_store(settings.state, create=False) as store:
            return await record_operator_verdict(store, write, word)

    try:
        what = run_to_completion(asked())
        ask_confirmation(f"Record the outcome of {what}: {_said(word)}?", yes=yes)
        told = run_to_completion(done())
    except NotSettled as why:
        raise Mistake(str(why)) from None
    if as_json:
        document({"write": told.id, "told": word.told})
    else:
        click.echo(f"Recorded: {what}: {_said(word)}. A running gateway continues from there.")


def _said(word: Word) -> str:
    if word.made:
        return f"made {word.made}"
    return "happened" if word.happened else "did not happen"


@writes.command("close")
@click.argument("write")
@yes_option
@json_option
@config_option
def close(*, write: str, yes: bool, as_json: bool, settings: Settings) -> None:
    """Give up a request that cannot be continued, such as one started by another version.

    The request that WRITE belongs to is not continued, its objects can be changed again, and the
    same request counts as a new one. The outcome of each of its writes must be known or recorded
    with `writes settle`.
    """
    from gateway.operator.closing import close_in_doubt_operation as closed
    from gateway.operator.in_doubt_writes import NotSettled, find_in_doubt_write
    from gateway.storage import open_store

    async def asked() -> str:
        async with open_store(settings.state, create=False) as store:
            one, _row = await find_in_doubt_write(store, write)
            return f"{one.operation} of {one.owner}, started {moment(one.began_at)}"

    async def done() -> None:
        async with open_store(settings.state, create=False) as store:
            await closed(store, write)

    try:
        what = run_to_completion(asked())
        ask_confirmation(f"Give up {what}?", yes=yes)
        run_to_completion(done())
    except NotSettled as why:
        raise Mistake(str(why)) from None
    if as_json:
        document({"write": write, "closed": True})
    else:
        click.echo(f"Closed: {what}.")
