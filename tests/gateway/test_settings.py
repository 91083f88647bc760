"""Settings from files and environment variables, and error messages for mistakes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from gateway.config.settings import ConfigurationError, load_settings
from gateway.operator.preflight import check_settings_are_runnable, list_placeholder_url_warnings

BASE_TOML = "[environments.live]\nbase_url = 'https://service.example'\n"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in os.environ:
        if name.startswith("PAYOUT_GATEWAY"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    umask_before = os.umask(0o077)  # secret files that others can read are refused
    yield
    os.umask(umask_before)


def test_secret_file_readable_by_others_is_refused() -> None:
    Path("token").write_text("a-token-of-some-length\n")
    Path("token").chmod(0o604)
    with pytest.raises(
        ConfigurationError, match=r"server\.admin_token_file: token: every user can read it"
    ):
        load_settings(write_config(f"{BASE_TOML}[server]\nadmin_token_file = 'token'"))
    Path("token").chmod(0o640)
    load_settings(write_config(f"{BASE_TOML}[server]\nadmin_token_file = 'token'"))


@pytest.mark.parametrize("name", ["base_url", "legacy_base_url"])
def test_plain_http_to_another_host_requires_allow_http(name: str) -> None:
    base_url_line = "base_url = 'https://service.example'\n" if name != "base_url" else ""
    text = f"[environments.live]\n{base_url_line}{name} = 'http://service.example'\n"
    with pytest.raises(ConfigurationError, match=f"{name}: .* allow_http"):
        load_settings(write_config(text))
    load_settings(write_config(f"{text}allow_http = true\n"))


@pytest.mark.parametrize("address", ["https://x:99999", "https://x:0", "http://127.0.0.1:port"])
def test_invalid_port_is_a_configuration_error(address: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"gateway\.toml:2: environments\.live\.base_url: .* port"
    ):
        load_settings(write_config(f"[environments.live]\nbase_url = '{address}'"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[environments.live]\nbase_url = 'https://x y'", "must be an address such as"),
        ("[deprecation]\npage = 'x'", "deprecation.page: must be an address such as"),
        (
            "[environments.live]\nbase_url = 'https://x'\nlegacy_base_url = 'x'",
            "gateway.toml:3: environments.live.legacy_base_url: must be an address such as",
        ),
        ("server = 1", "gateway.toml:1: server: must be a section"),
        ("[upstream]\nproxy = 'proxy:3128'", "upstream.proxy: must begin with http://"),
        ("[deprecation]\nafter_sunset = 'refuse'", "requires announced"),
        ("[upstream]\nproxy = 'https://x'", "upstream.proxy: must begin with http://"),
        ("[traces]\nendpoint = 'x'", "traces.endpoint: must be an address such as"),
        (
            "[vocabulary.current]\ntimestamp_header = 'Host'",
            "must be a header of the service's own",
        ),
    ],
)
def test_unusable_value_is_named_by_its_key(text: str, problem: str) -> None:
    assert problem in load_only_problem(text)


def write_config(text: str) -> Path:
    path = Path("gateway.toml")
    path.write_text(text, "utf-8")
    return path


def load_problems(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        load_settings(write_config(text))
    return error.value.problems


def load_only_problem(text: str) -> str:
    (problem_text,) = load_problems(text)
    return problem_text


# Defaults.


def test_without_file_every_key_has_its_documented_default() -> None:
    settings = load_settings(None)
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert (settings.server.admin_host, settings.server.admin_port) == ("127.0.0.1", 8081)
    assert (settings.server.workers, settings.server.trusted_proxies) == (1, ())
    assert settings.environments.map_configured_environments_by_name() == {}
    assert settings.state.url == "sqlite:///gateway.db"
    assert settings.state.encryption_key_file == Path("gateway.key")
    assert settings.state.restore_mark_path == Path("gateway.key.mark")
    assert settings.limits.url == "memory://"
    assert (settings.limits.requests_per_hour, settings.limits.body_bytes) == (10_000, 67_108_864)
    assert (settings.upstream.timeout_seconds, settings.upstream.connections) == (25, 100)
    assert settings.upstream.signed_target == "auto"
    assert settings.upstream.inferred_operations == "auto"
    assert settings.legacy.stand_ins == "all"
    assert (settings.signed.unknown_keys, settings.signed.environment) == ("refuse", "")
    assert settings.legacy.verify_before_start == "warn"
    assert settings.legacy.government_ids == "keep"
    assert settings.legacy.holdup == "remember"
    assert settings.legacy.primary_currency == "both"
    assert settings.vocabulary.legacy.service_total == "ServiceTotal"
    assert settings.vocabulary.current.scheme == "svcsign"
    assert settings.vocabulary.current.timestamp_header == "X-SVC-Timestamp"


# Errors in a file.


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("[server]\nport = -1", "server.port"),
        ("[limits]\nrequests_per_hour = 0", "limits.requests_per_hour"),
        ("[limits]\nbody_bytes = 1", "limits.body_bytes"),
        ("[limits]\nurl = 'http://limits.example'", "limits.url"),
        ("[load]\nin_flight = 0", "load.in_flight"),
        ("[load]\nqueue_seconds = 0", "load.queue_seconds"),
        ("[load]\nconnections = 1", "load.connections"),
        ("[load]\nqueue = -1", "load.queue"),
        ("[load]\nbody_bytes_per_second = -1", "load.body_bytes_per_second"),
        ("[load]\nheld_bytes = 1000", "load.held_bytes"),
        ("[state]\nurl = 'mysql://db'", "state.url"),
        ("[upstream]\ntimeout_seconds = 0", "upstream.timeout_seconds"),
        ("[upstream]\ntimeout_seconds = 'soon'", "upstream.timeout_seconds"),
        ("[upstream]\nconnections = 0", "upstream.connections"),
        ("[upstream]\nsigned_target = 'query'", "upstream.signed_target"),
        ("[upstream]\ninferred_operations = 'never'", "upstream.inferred_operations"),
        ("[legacy]\nholdup = true", "legacy.holdup"),
        ("[legacy]\nprimary_currency = ''", "legacy.primary_currency"),
        ("[signed]\nunknown_keys = 'allow'", "signed.unknown_keys"),
        ("[signed]\nenvironment = 'test'", "signed.environment"),
        ("[vocabulary.current]\nsummary_path = '/v1/batch/summary'", "vocabulary.current.summary_path"),
        ("[vocabulary.legacy]\nwallet = 7", "vocabulary.legacy.wallet"),
        ("[vocabulary.legacy]\nwallet = 'bank'", "vocabulary.legacy.wallet"),
        ("[vocabulary.legacy]\nwallet = 'Bank'", "vocabulary.legacy.wallet"),
        ("[vocabulary.legacy]\nwallet = 'bank-transfer'", "vocabulary.legacy.wallet"),
        ("[vocabulary.legacy]\nwallet = 'check'", "vocabulary.legacy.wallet"),
        ("[vocabulary.legacy]\nwallet = 'USD'", "vocabulary.legacy.wallet"),
        ("[vocabulary.current]\nwallet = 'bank-transfer'", "vocabulary.current.wallet"),
        ("[vocabulary.current]\nwallet = 'mobile-wallet'", "vocabulary.current.wallet"),
        ("[vocabulary.legacy]\nservice = 'wallet'", "vocabulary.legacy.service"),
        ("[vocabulary.legacy]\nservice_total = 'GatewayTotal'", "vocabulary.legacy.service_total"),
        ("[vocabulary.legacy]\navatar_url = 'email'", "vocabulary.legacy.avatar_url"),
        ("[vocabulary.current]\navatar_url = 'status'", "vocabulary.current.avatar_url"),
        ("[vocabulary.current]\nbatch_currency = 'payments'", "vocabulary.current.batch_currency"),
        ("[vocabulary.legacy]\nwallet_display_name = ' PayPal'", "vocabulary.legacy.wallet_display_name"),
        ('[vocabulary.legacy]\nbank_method_display = "a\\nb"', "vocabulary.legacy.bank_method_display"),
    ],
)  # fmt: skip
def test_invalid_value_is_named_with_its_line(line: str, key: str) -> None:
    problem_text = load_only_problem(f"# a comment\n\n{line}")
    assert problem_text.startswith(f"gateway.toml:4: {key}: ")
    assert len(problem_text) > len(f"gateway.toml:4: {key}: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server.port = true", "1: server.port: must be a number, not true or false"),
        ("server.port = 'x'", "1: server.port: must be a whole number"),
        ("server.port = 80.5", "1: server.port: must be a whole number"),
        ("server.port = 65536", "1: server.port: must be 65535 or less"),
        ("server.workers = 0", "1: server.workers: must be 1 or more"),
        ("server.host = 5", "1: server.host: must be text, in quotes"),
        ("server.tls_key_file = 5", "1: server.tls_key_file: must be a path, in quotes"),
        ("server.admin_token_file = 5", "1: server.admin_token_file: must be a path, in quotes"),
        ("server.trusted_proxies = 5", "1: server.trusted_proxies: must be a list, in square brackets"),
        ("server.trusted_proxies = ['x']", "1: server.trusted_proxies.0: must be an address or a network such as 192.0.2.0/24"),
        ("load.queue_seconds = false", "1: load.queue_seconds: must be a number, not true or false"),
        ('upstream.ca_file = "\\u0000"', "1: upstream.ca_file: must not contain a NUL character"),
        ('state.encryption_key_file = "x\\u0000"', "1: state.encryption_key_file: must not contain a NUL character"),
        ("load.queue_seconds = 'soon'", "1: load.queue_seconds: must be a number"),
        ("comparing.sample = 0", "1: comparing.sample: must be more than 0.0"),
        ("legacy.send_memo = 'maybe'", "1: legacy.send_memo: must be true or false"),
        ("legacy.stand_ins = 'some'", "1: legacy.stand_ins: must be 'all', 'batches' or 'none'"),
        ("vocabulary.current.balance_path = 'x'", "1: vocabulary.current.balance_path: must be a path such as /v1/balance"),
        ("vocabulary.current.summary_path = '/v1/x'", "1: vocabulary.current.summary_path: must be a path such as /v1/batch/{id}/summary"),
        (f"{BASE_TOML}\n[server]\nport = 1\nprot = 2\n", "6: server.prot: unknown key; did you mean port?"),
        ("[sever]\nport = 1", "1: sever: unknown key; did you mean server?"),
        ("\n[enviroments.live]\nbase_url = 'https://x.example'", "2: enviroments: unknown key; did you mean environments?"),
        ("[environments.test]\nbase_url = 'https://x.example'", "1: environments.test: unknown key; valid keys: live, sandbox"),
        # Without a second line that says that base_url is missing.
        ("[environments.live]\nbase_ulr = 'https://x.example'", "2: environments.live.base_ulr: unknown key; did you mean base_url?"),
        ("[server]\nport = 1\n[environments.live]\nlegacy_base_url = ''", "3: environments.live.base_url: missing"),
        ("[limits]\ncolour = 1", "2: limits.colour: unknown key"),
        ("server_port = 1", "1: server_port: unknown key; did you mean server.port?"),
        ("[upstream]\ntimeout_seconds = inf", "2: upstream.timeout_seconds: must be a finite number"),
        ("[upstream]\ntimeout_seconds = nan", "2: upstream.timeout_seconds: must be a finite number"),
        *(
            (f"[deprecation]\nannounced = 2026-11-01\nsunset = {day}", '3: deprecation.sunset: must be a day, written as "2026-11-30"')
            for day in ("'soon'", "'2026-02-30'", "'20261130'", "7", "2026-11-30T10:00:00")
        ),
    ],
)  # fmt: skip
def test_invalid_value_is_reported_with_what_to_write(text: str, problem: str) -> None:
    assert load_only_problem(text) == f"gateway.toml:{problem}"


def test_wallet_word_equal_to_service_default_is_reported() -> None:
    """The service's word is a default, so it has no line."""
    (problem_text,) = load_problems("[vocabulary.legacy]\nwallet = 'service'")
    assert problem_text.startswith(
        "gateway.toml:1: vocabulary.legacy.service: is the wallet's word"
    )


def test_invalid_list_item_is_named_with_line_of_the_list() -> None:
    problem_text = load_only_problem("[server]\ntrusted_proxies = ['10.0.0.0/8', '10.0.0.0/99']")
    assert problem_text.startswith("gateway.toml:2: server.trusted_proxies.1: ")


def test_all_errors_are_reported_at_once() -> None:
    problem_text = load_problems("[server]\nport = 'x'\nhots = 'y'\n[limits]\nbody_bytes = 0")
    # The misspelt key first.
    assert [outcome.split(": ")[0] for outcome in problem_text] == [
        "gateway.toml:3",
        "gateway.toml:2",
        "gateway.toml:5",
    ]


@pytest.mark.parametrize(
    "toml_text",
    ["server.port = 'x'", "server = { port = 'x' }", "[server]\n  port='x'", "[ server ]\nport = 'x'",
     "[server] # here\nport = 'x'", '["server"]\n"port" = "x"'],
)  # fmt: skip
def test_line_is_found_for_any_toml_spelling(toml_text: str) -> None:
    problem_text = load_only_problem(toml_text)
    assert problem_text.startswith(f"gateway.toml:{toml_text.count(chr(10)) + 1}: server.port: ")


def test_invalid_toml_is_named_with_its_line() -> None:
    problem_text = load_only_problem("[server]\nport = = 1")
    assert problem_text.startswith("gateway.toml: not TOML: ")
    assert "line 2" in problem_text


def test_byte_order_mark_is_ignored() -> None:
    Path("gateway.toml").write_text("\ufeff[server]\nport = 9000\n", "utf-8")
    assert load_settings(Path("gateway.toml")).server.port == 9000


def test_mistyped_key_gets_a_suggestion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_only_problem("[server.port]\nx = 1").startswith("gateway.toml:1: server.port: ")
    with monkeypatch.context() as context:
        context.setenv("PAYOUT_GATEWAY_SERVER_PORT", "9000")
        suggestion = "unknown key; did you mean PAYOUT_GATEWAY_SERVER__PORT?"
        assert load_only_problem("").endswith(suggestion)
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__PROT", "9000")
    variable = "environment variable PAYOUT_GATEWAY_SERVER__PROT"
    assert load_only_problem("") == f"{variable}: unknown key; did you mean port?"


def test_binary_file_is_an_error() -> None:
    Path("gateway.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"gateway\.toml: not UTF-8 text"):
        load_settings(Path("gateway.toml"))


def test_unreadable_file_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"other\.toml: there is no such file"):
        load_settings(Path("other.toml"))
    with pytest.raises(ConfigurationError, match=r"\.: Is a directory"):
        load_settings(Path())


# Base URLs.


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://service.example", "https://service.example"),
        ("https://service.example/", "https://service.example"),
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("https://[2001:db8::1]:8443/", "https://[2001:db8::1]:8443"),
        ("https://service.example/payouts/", "https://service.example/payouts"),
        ("https://v1.example", "https://v1.example"),
    ],
)
def test_base_url_loses_its_trailing_slash(address: str, expected: str) -> None:
    settings = load_settings(write_config(f"[environments.sandbox]\nbase_url = '{address}'"))
    assert (
        settings.environments.map_configured_environments_by_name()["sandbox"].base_url == expected
    )


@pytest.mark.parametrize(
    "address",
    ["https://service.example/v1", "https://service.example/v1/", "https://service.example/payouts/v1",
     "service.example", "//service.example", "ftp://service.example", "https://", "", "https:///v1",
     "https://service.example?x=1", "https://service.example#x", "https://me:hush@service.example"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["base_url", "legacy_base_url"])
def test_unusable_base_url_is_refused(key: str, address: str) -> None:
    base_url_line = "base_url = 'https://service.example'\n" if key == "legacy_base_url" else ""
    if key == "legacy_base_url" and not address:
        assert load_settings(write_config(f"[environments.live]\n{base_url_line}{key} = ''"))
        return
    text = f"[environments.live]\n{base_url_line}{key} = '{address}'"
    for problem_text in load_problems(text):
        assert problem_text.startswith(
            f"gateway.toml:{text.count(chr(10)) + 1}: environments.live.{key}"
        )
        assert "hush" not in problem_text


# Environment variables.


def test_variable_overrides_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__PORT", "9001")
    settings = load_settings(write_config("[server]\nport = 9000\nhost = '::1'"))
    assert (settings.server.port, settings.server.host) == (9001, "::1")


@pytest.mark.parametrize(
    ("name", "value", "has_value"),
    [
        ("SERVER__TRUSTED_PROXIES", '["10.0.0.0/8"]', lambda settings: settings.server.trusted_proxies == ("10.0.0.0/8",)),
        ("SERVER__HOST", "::", lambda settings: settings.server.host == "::"),
        ("UPSTREAM__TIMEOUT_SECONDS", "2.5", lambda settings: settings.upstream.timeout_seconds == 2.5),
        ("LIMITS__REQUESTS_PER_HOUR", "5", lambda settings: settings.limits.requests_per_hour == 5),
        ("LEGACY__HOLDUP", "refuse", lambda settings: settings.legacy.holdup == "refuse"),
        ("STATE__MARK_FILE", "/var/m", lambda settings: settings.state.restore_mark_path == Path("/var/m")),
        ("UPSTREAM__ABANDONED_CHECK_SECONDS", "60", lambda settings: settings.upstream.abandoned_check_seconds == 60),
        ("STATE__ENCRYPTION_KEY_FILE", "/run/k", lambda settings: settings.state.encryption_key_file == Path("/run/k")),
        ("VOCABULARY__CURRENT__SCHEME", "own", lambda settings: settings.vocabulary.current.scheme == "own"),
        ("VOCABULARY__LEGACY__WALLET", "own", lambda settings: settings.vocabulary.build_vocabulary().legacy_wallet == "own"),
    ],
    ids=lambda parameter: parameter if isinstance(parameter, str) else "",
)  # fmt: skip
def test_every_type_of_key_can_be_a_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, has_value: object
) -> None:
    monkeypatch.setenv(f"PAYOUT_GATEWAY_{name}", value)
    assert has_value(load_settings(None))


def test_empty_variable_equals_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__PORT", "")
    assert load_settings(write_config("[server]\nport = 9000")).server.port == 9000


def test_invalid_variable_is_named_without_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__PORT", "http")
    problem_text = load_only_problem("[server]\nport = 9000")
    assert "port" in problem_text.lower()
    assert not problem_text.startswith("gateway.toml:2"), "the line is right; the variable is not"


@pytest.mark.parametrize("text", ["10.0.0.0/8, ::1", '["10.0.0.0/8", "::1"]'])
def test_list_can_be_a_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__TRUSTED_PROXIES", text)
    assert load_settings(None).server.trusted_proxies == ("10.0.0.0/8", "::1")


@pytest.mark.parametrize("name", ["SERVER__PROT", "SEVER__PORT"])
def test_variable_for_unknown_key_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"PAYOUT_GATEWAY_{name}", "1")
    with pytest.raises(ConfigurationError, match=f"(?i){name.replace('__', '(__|.)')}"):
        load_settings(None)


def test_service_variables_of_orchestrators_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"PAYOUT_GATEWAY_{name}", "tcp://10.0.0.1:8080")
    assert load_settings(None).server.port == 8080


def test_secret_in_variable_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYOUT_GATEWAY_STATE__URL", "mysql://gateway:hush-hush@db")
    with pytest.raises(ConfigurationError) as error:
        load_settings(None)
    assert "hush-hush" not in str(error.value)


# Secrets from files, and paths.


def test_url_can_be_read_from_a_file() -> None:
    Path("database").write_text("postgresql://gateway:hush@db/gateway\n")
    settings = load_settings(write_config("[state]\nurl_file = 'database'"))
    assert settings.state.url == "postgresql://gateway:hush@db/gateway"


def test_url_file_precedes_url() -> None:
    Path("limits").write_text("redis://limits")
    settings = load_settings(write_config("[limits]\nurl = 'memory://'\nurl_file = 'limits'"))
    assert settings.limits.url == "redis://limits"


@pytest.mark.parametrize("names", [("PORT", "PORT__X"), ("PORT__X", "PORT")])
def test_variables_of_a_key_and_of_a_part_of_it_are_an_error(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setenv(f"PAYOUT_GATEWAY_SERVER__{name}", "9001")
    assert load_only_problem("").endswith(": must be a whole number")


def test_variable_precedes_a_file_that_the_configuration_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("limits").write_text("redis://file")
    Path("token").write_text("the-token-of-the-file")
    text = f"{BASE_TOML}[limits]\nurl_file = 'limits'\n[server]\nadmin_token_file = 'token'"
    monkeypatch.setenv("PAYOUT_GATEWAY_LIMITS__URL", "redis://variable")
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__ADMIN_TOKEN", "a-token-of-the-variable")
    settings = load_settings(write_config(text))
    assert settings.limits.url == "redis://variable"
    assert settings.server.admin_token.get_secret_value() == "a-token-of-the-variable"
    # Of two variables, that of the file counts, as of two keys.
    monkeypatch.setenv("PAYOUT_GATEWAY_LIMITS__URL_FILE", "limits")
    assert load_settings(write_config(text)).limits.url == "redis://file"


def test_url_file_is_read_once_and_may_be_a_pipe() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"postgresql://gateway@db/gateway")
    os.close(write_end)
    try:
        settings = load_settings(write_config(f"[state]\nurl_file = '/dev/fd/{read_end}'"))
        assert settings.state.url == "postgresql://gateway@db/gateway"
    finally:
        os.close(read_end)
    os.mkfifo("secret")
    with ThreadPoolExecutor(1) as executor:
        executor.submit(Path("secret").write_text, "a-token-that-is-long-enough")
        settings = load_settings(write_config("[server]\nadmin_token_file = 'secret'"))
    assert settings.server.admin_token.get_secret_value() == "a-token-that-is-long-enough"


def test_missing_url_file_is_an_error() -> None:
    problem_text = load_only_problem("[state]\nurl_file = 'database'")
    assert ":2: state.url_file: database: there is no such file in" in problem_text


@pytest.mark.parametrize("text", ["", "mysql://gateway:hush@db", "not an address"])
def test_url_file_with_invalid_url_is_an_error(text: str) -> None:
    Path("database").write_text(text)
    problem_text = load_only_problem("[state]\nurl_file = 'database'")
    assert "state.url" in problem_text
    assert "hush" not in problem_text


def test_relative_paths_resolve_against_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("etc", "run"):
        (tmp_path / folder).mkdir()
    text = "[state]\nurl_file = 'database'\nencryption_key_file = 'own.key'"
    (tmp_path / "etc/gateway.toml").write_text(text)
    (tmp_path / "etc/database").write_text("postgresql://etc")
    (tmp_path / "run/database").write_text("postgresql://run")
    monkeypatch.chdir(tmp_path / "run")
    settings = load_settings(Path("../etc/gateway.toml"))
    assert settings.state.url == "postgresql://run"
    assert settings.state.encryption_key_file == Path("own.key")


def test_error_about_secret_file_contains_no_secret() -> None:
    Path("database").write_bytes(b"\xff\xfe")
    assert load_only_problem("[state]\nurl_file = 'database'").endswith(
        ": database: not UTF-8 text"
    )


# Valid settings that cannot run.


def list_run_problems(text: str) -> list[str]:
    try:
        check_settings_are_runnable(load_settings(write_config(text)))
    except ConfigurationError as refused:
        return refused.problems
    return []


@pytest.mark.parametrize("line", ["in_flight = 31", "queue = 127"])
def test_merchant_limit_may_not_exceed_total_limit(line: str) -> None:
    assert "per_merchant exceeds" in load_only_problem(f"[load]\n{line}")


def test_body_limit_must_fit_memory_limit() -> None:
    (problem_text,) = list_run_problems(f"{BASE_TOML}[limits]\nbody_bytes = 100_000_000")
    assert "load.held_bytes" in problem_text
    assert (
        list_run_problems(
            f"{BASE_TOML}[limits]\nbody_bytes = 100_000_000\n[load]\nheld_bytes = 400_000_000"
        )
        == []
    )


def test_no_environment_cannot_be_run() -> None:
    (problem_text,) = list_run_problems("[server]\nport = 1")
    assert "base_url" in problem_text


@pytest.mark.parametrize("date_text", ["2026-11-30", "'2026-11-30'"])
def test_date_may_be_toml_date_or_text(date_text: str) -> None:
    settings = load_settings(write_config(f"[deprecation]\nannounced = {date_text}"))
    assert settings.deprecation.announced == date(2026, 11, 30)


def test_unrunnable_settings_are_reported_with_position(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[server]\nport = 9000\nadmin_port = 9000"
    (problem_text,) = list_run_problems(BASE_TOML + text)
    assert problem_text.startswith("gateway.toml:5: server.admin_port: is the same as server.port")
    (problem_text,) = list_run_problems(f"{BASE_TOML}[server]\nport = 8081")
    assert problem_text.startswith("gateway.toml:3: server.admin_port: ")
    monkeypatch.setenv("PAYOUT_GATEWAY_SERVER__ADMIN_PORT", "9000")
    (problem_text,) = list_run_problems(f"{BASE_TOML}[server]\nport = 9000")
    assert problem_text.startswith("environment variable PAYOUT_GATEWAY_SERVER__ADMIN_PORT: is ")


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("", "http://127.0.0.1:8080"),
        ("", "http://localhost:8080/api"),
        ("", "http://127.0.0.1:8081"),
        ("host = 'localhost'", "http://[::1]:8080"),
        ("host = '0.0.0.0'", "http://127.0.0.1:8080"),
        ("host = '0.0.0.0'", f"http://{socket.gethostname()}:8080"),
        ("host = '10.1.2.3'\nport = 443", "https://10.1.2.3"),
    ],
)
@pytest.mark.parametrize("key", ["base_url", "legacy_base_url"])
def test_gateway_may_not_be_its_own_service(server: str, url: str, key: str) -> None:
    base_url_line = "base_url = 'https://service.test'\n" if key != "base_url" else ""
    text = f"[environments.live]\n{base_url_line}{key} = '{url}'\nallow_http = true\n[server]\n{server}"
    (problem_text,) = list_run_problems(text)
    line = 3 if base_url_line else 2
    assert problem_text.startswith(
        f"gateway.toml:{line}: environments.live.{key}: {url} is the address of this gateway;"
    )


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("", "http://127.0.0.1:8090"),
        ("", "https://service.test:8080"),
        ("", "http://127.0.0.2:8080"),
        ("host = '10.1.2.3'", "http://127.0.0.1:8080"),
        ("port = 0", "http://127.0.0.1"),
        ("port = 80", "https://service.test"),
        ("host = '0.0.0.0'\nport = 80", "https://service.test"),
        ("host = '0.0.0.0'\nport = 443", "https://service.test"),
        ("admin_port = 80", "https://service.test"),
    ],
)
def test_same_port_of_another_host_is_accepted(server: str, url: str) -> None:
    assert list_run_problems(f"[environments.live]\nbase_url = '{url}'\n[server]\n{server}") == []


def test_example_base_url_is_a_placeholder() -> None:
    addresses = "legacy_base_url = 'https://old.service.example'\n[environments.sandbox]\n"
    text = f"{BASE_TOML}{addresses}base_url = 'https://service.example.com'"
    first, second = list_placeholder_url_warnings(load_settings(write_config(text)))
    assert first.startswith("gateway.toml:2: environments.live.base_url: https://service.example ")
    assert second.startswith("gateway.toml:3: environments.live.legacy_base_url: ")


def find_url_passwords(text: str) -> list[str]:
    return list(load_settings(write_config(text)).config_file.find_url_password_problems())


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("state", "postgresql://gateway:hush@database.example/gateway"),
        ("state", "postgresql://gateway@database.example/gateway?password=hush"),
        ("limits", "redis://:hush@redis.example:6379/0"),
    ],
)
def test_password_in_file_is_warned_of_and_not_shown(
    section: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{BASE_TOML}[{section}]\nurl = '{url}'"
    (warning,) = find_url_passwords(text)
    variable = f"PAYOUT_GATEWAY_{section.upper()}__URL"
    assert warning.startswith(f"gateway.toml:4: {section}.url: contains a password")
    assert "url_file" in warning
    assert variable in warning
    assert "hush" not in warning
    monkeypatch.setenv(variable, url)
    assert find_url_passwords(text) == [warning], "it is still in the file"
    assert find_url_passwords(BASE_TOML) == []


def test_invalid_url_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{BASE_TOML}[state]\nurl = 'postgresql://[::1/gateway'"
    monkeypatch.setenv("PAYOUT_GATEWAY_STATE__URL", "sqlite:///gateway.db")
    assert find_url_passwords(text) == []


def test_password_outside_file_is_not_warned_of(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://gateway:hush@database.example/gateway")
    text = f"{BASE_TOML}[state]\nurl_file = '{tmp_path}/url'"
    assert find_url_passwords(text) == []
    config_text = f"{BASE_TOML}[state]\nurl = 'postgresql://gateway@database.example/gateway'"
    assert find_url_passwords(config_text) == []


def test_several_workers_require_shared_state_and_limits() -> None:
    state, limit = list_run_problems(BASE_TOML + "[server]\nworkers = 2")
    assert state.startswith("gateway.toml:4: server.workers: ")
    assert "postgresql" in state
    assert limit.startswith("gateway.toml:4: server.workers: memory:// ")
    assert "redis://" in limit


@pytest.mark.parametrize("key", ["upstream.ca_file", "environments.live.ca_file"])
def test_unreadable_ca_file_is_reported_with_position(key: str) -> None:
    section, name = key.rsplit(".", 1)
    text = f"[{section}]\n{name} = '/nowhere/at-all.pem'\n"
    base_url_line = "base_url = 'https://service.test'\n"
    text += base_url_line if section.startswith("env") else f"[environments.live]\n{base_url_line}"
    (problem_text,) = list_run_problems(text)
    assert problem_text.startswith(f"gateway.toml:2: {key}: /nowhere/at-all.pem cannot be used")


def test_forwarding_environment_must_be_configured() -> None:
    config_text = BASE_TOML + "[signed]\nunknown_keys = 'forward'\n"
    assert load_only_problem(config_text) == (
        'gateway.toml:3: signed: unknown_keys = "forward" needs environment, "live" or "sandbox"'
    )
    assert list_run_problems(config_text + "environment = 'live'") == []
    (problem_text,) = list_run_problems(config_text + "environment = 'sandbox'")
    assert (
        problem_text
        == "gateway.toml:5: signed.environment: is sandbox, but [environments.sandbox] is not configured"
    )


# Secrets of the admin port and of a proxy.


def test_secret_is_read_from_file_or_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("token").write_text("a-token-of-some-length\n")
    monkeypatch.setenv("PAYOUT_GATEWAY_UPSTREAM__PROXY_CREDENTIALS", "gate:hush")
    text = "[server]\nadmin_token_file = 'token'\n[upstream]\nproxy = 'http://proxy.example:3128'"
    settings = load_settings(write_config(text))
    assert settings.server.admin_token.get_secret_value() == "a-token-of-some-length"
    assert settings.upstream.proxy_credentials.get_secret_value() == "gate:hush"
    assert "hush" not in repr(settings)
    assert "a-token" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("[server]\nadmin_token = 'hush-hush-hush-hush'", ":2: server.admin_token: is a secret"),
        ("[upstream]\nproxy_credentials = 'gate:hush'", "upstream.proxy_credentials: is a secret"),
        ("[server]\nadmin_token_file = 'short'", "at least 16 visible characters"),
        ("[server]\nadmin_token_file = 'empty'", "at least 16 visible characters"),
        ("[server]\nadmin_token_file = 'missing'", "server.admin_token_file: missing: there is no such file"),
        ("[server]\ntls_key_file = 'short'", "need each other"),
        ("[upstream]\nproxy_credentials_file = 'short'", "proxy_credentials need proxy"),
        ("[upstream]\nproxy = 'http://gate:hush@proxy.example'", "without query, fragment or credentials"),
        ("[upstream]\nproxy = 'socks5://proxy.example'", "upstream.proxy"),
        ("[upstream]\nproxy = 'http://p'\nproxy_credentials_file = 'short'", "name:password"),
    ],
)  # fmt: skip
def test_misplaced_secret_is_an_error_without_quoting_it(text: str, expected_text: str) -> None:
    Path("short").write_text("hush")
    Path("empty").write_text("")
    problem_text = " ".join(load_problems(text))
    assert expected_text in problem_text
    assert "hush" not in problem_text
