"""`payout-gateway openapi`: prints the legacy interface as an OpenAPI document."""

from __future__ import annotations

import click

from gateway.cli.options import config_option, print_json
from gateway.config.settings import Settings
from gateway.docgen.openapi import build_openapi_document, list_public_urls


@click.command()
@config_option
def openapi(*, settings: Settings) -> None:
    """Print the legacy interface as an OpenAPI 3.1 document, in the configured vocabulary.

    A running gateway serves the document at /openapi.json on its admin port.
    """
    urls = list_public_urls(settings.server, settings.server.port)
    print_json(build_openapi_document(settings.vocabulary.build_vocabulary(), urls))
