"""`payout-gateway writes`: writes of unknown outcome, and what an operator found out of them."""

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
    """Writes that were sent and not answered."""


@writes.command("unsettled")
@json_option
@config_option
def unsettled(*, as_json: bool, settings: Settings) -> None:
    """List every write of unknown outcome, and what to do about it; exit 0 also when there are some.

    Each was sent and not answered, and what became of it could not be read of the service yet.
    Most are found out by themselves within a minute. Until one is, its object cannot be changed,
    and the same request again is answered with an error. What is being carried out at this moment
    is not listed; to see whether it is, this may watch for a few seconds.
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
        click.echo("No write is unsettled.")
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
        f"    of:          {one.owner}, {one.operation}, key {one.key_name}"
        + (f", {each.object}" if each.object else ""),
        f"    unsettled:   {each.why}",
        *([f"    found out:   {_found(write.told)}"] if write.told else []),
        f"    what to do:  {each.to_do}",
    ]
    return "\n".join(lines)


def _found(told: str) -> str:
    from gateway.storage.journal_states import in_words
    from gateway.storage.undertakings import TOLD

    return in_words(told) if told in TOLD else f"made {told}"


@writes.command("settle")
@click.argument("write")
@click.option("--happened", is_flag=True, help="It was carried out.")
@click.option(
    "--did-not-happen", is_flag=True, help="It was not, and the request may be sent again."
)
@click.option("--made", metavar="ID", help="It was carried out, and this is what it made.")
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
    """Note what you found out of WRITE, an id that `writes unsettled` shows.

    Say one of --happened, --did-not-happen and --made. What you say decides whether money is sent
    again, so look first. A running gateway takes it into account within two seconds; what it can
    see itself to have happened counts all the same.
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
        raise click.UsageError("say one of --happened, --did-not-happen and --made ID")
    word = Word(happened or made is not None, made)

    async def asked() -> str:
        async with open_store(settings.state, create=False) as store:
            one, row = await find_in_doubt_write(store, write)
            check_operator_verdict(row, word)
            return f"{row.method} {row.path} of {one.owner}, {moment(row.entered_at)}"

    async def done() -> Unsettled:
        async with open_store(settings.state, create=False) as store:
            return await record_operator_verdict(store, write, word)

    try:
        what = run_to_completion(asked())
        ask_confirmation(f"{what}: {_said(word)}. Is that so?", yes=yes)
        told = run_to_completion(done())
    except NotSettled as why:
        raise Mistake(str(why)) from None
    if as_json:
        document({"write": told.id, "told": word.told})
    else:
        click.echo(f"Noted: {what}: {_said(word)}. A running gateway goes on from there.")


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
    """Give up what cannot be carried on, such as a request begun by another version.

    Nothing more of the request that WRITE belongs to is carried out, what it held can be changed
    again, and the same request again is another one. Every write of it has to be settled, or
    told with `writes settle`.
    """
    from gateway.operator.closing import close_in_doubt_operation as closed
    from gateway.operator.in_doubt_writes import NotSettled, find_in_doubt_write
    from gateway.storage import open_store

    async def asked() -> str:
        async with open_store(settings.state, create=False) as store:
            one, _row = await find_in_doubt_write(store, write)
            return f"{one.operation} of {one.owner}, begun {moment(one.began_at)}"

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
