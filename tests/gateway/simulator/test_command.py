import hashlib
import hmac
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.processes import build_command

DEMO_CREDENTIALS = ("SIMULATORACCESSKEY", "simulator-secret-key")


@contextmanager
def run_simulator(*arguments, line_count, stdin=""):
    """Run the command and yield its process, its URL, and the lines that it printed."""
    command = [*build_command(), "simulate", "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdin.write(stdin)
        process.stdin.close()
        printed_lines = [process.stdout.readline() for _ in range(line_count)]
        try:
            yield process, re.search(r"http://\S+", printed_lines[0])[0], printed_lines
        finally:
            process.kill()


def list_recipients(url, access_key, secret_key):
    target = "/v1/recipients"
    text = f"GET\n{target}\n\n"
    return send_with_signature(f"{url}{target}", "GET", text, (access_key, secret_key))


def send_signed(url, method, target, body=""):
    return send_with_signature(
        f"{url}{target}", method, f"{method}\n{target}\n{body}\n", DEMO_CREDENTIALS, body
    )


def send_with_signature(address, method, text, credentials, body=""):
    access_key, secret_key = credentials
    timestamp = str(int(time.time()))
    signed_text = f"{timestamp}\n{text}".encode()
    signature = hmac.new(secret_key.encode(), signed_text, hashlib.sha256).hexdigest()
    request = urllib.request.Request(
        address,
        method=method,
        data=body.encode() or None,
        headers={
            "Authorization": f"svcsign {access_key}:{signature}",
            "X-SVC-Timestamp": timestamp,
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.status, json.load(refused)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_uses_demo_credentials_and_stops_on_signal(number):
    with run_simulator(line_count=2) as (process, url, printed_lines):
        assert url.startswith("http://127.0.0.1:")
        line = json.loads(re.search(r"\{.*\}", printed_lines[1])[0])
        assert "keys import -" in printed_lines[1]
        assert set(line) == {"merchant", "environment", "api_key", "access_key", "secret_key"}
        status, answer = list_recipients(url, line["access_key"], line["secret_key"])
        assert (status, answer["meta"]["records"]) == (200, 0)
        process.send_signal(number)
        assert process.wait(10) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_command_accepts_credentials():
    key = {"merchant": "acme", "environment": "live", "access_key": "AK1", "secret_key": "one"}
    text = json.dumps({**key, "api_key": "k", "name": "n"}) + "\n\n"
    with run_simulator("--keys", "-", line_count=1, stdin=text) as (_, url, printed_lines):
        assert "one" not in printed_lines[0]
        status, answer = list_recipients(url, "AK1", "one")
        assert status == 200
        assert answer["meta"]["records"] == 0
        assert list_recipients(url, *DEMO_CREDENTIALS)[0] == 401


def test_each_api_key_of_an_access_key_is_accepted():
    key = {"merchant": "acme", "environment": "live", "access_key": "AK1", "secret_key": "one"}
    lines = [json.dumps({**key, "api_key": word, "name": word}) for word in ("shop", "office")]
    options = ("--keys", "-", "--legacy-port", "0")
    with run_simulator(*options, line_count=2, stdin="\n".join(lines)) as (_, _url, printed_lines):
        legacy_url = re.search(r"http://\S+", printed_lines[1])[0]
        for word in ("shop", "office"):
            request = urllib.request.Request(
                f"{legacy_url}/v1/profile/balances", headers={"X-API-Key": word}
            )
            with urllib.request.urlopen(request, timeout=10) as response:
                assert json.load(response)["ok"]


VOCABULARY_TOML = """
[vocabulary.legacy]
wallet = "paypal"
service = "acme"
wallet_method_display = "PayPal"
[vocabulary.current]
scheme = "svcsign"
wallet = "payco"
balance_path = "/v1/funds"
"""


@pytest.mark.parametrize("source", ["named", "where it runs", "variables"])
def test_both_interfaces_use_configured_vocabulary(source, tmp_path, monkeypatch):
    """Each merchant has a wallet balance, which can be read without any setup."""
    arguments = ["--legacy-port", "0"]
    if source == "variables":
        for line in VOCABULARY_TOML.split("\n[")[1:]:
            section, *assignments = line.strip().splitlines()
            for name, quoted_value in (assignment.split(" = ") for assignment in assignments):
                key = f"{section.rstrip(']').lstrip('[')}__{name}".replace(".", "__").upper()
                monkeypatch.setenv(f"PAYOUT_GATEWAY_{key}", quoted_value.strip('"'))
    else:
        (tmp_path / "gateway.toml").write_text(VOCABULARY_TOML)
    if source == "named":
        arguments += ["--config", str(tmp_path / "gateway.toml")]
    else:
        monkeypatch.chdir(tmp_path)
    with run_simulator(*arguments, line_count=3) as (_, url, printed_lines):
        legacy = re.search(r"http://\S+", printed_lines[1])[0]
        status, answer = send_signed(url, "GET", "/v1/funds")
        assert (status, answer["balances"]["payco"]["type"]) == (200, "payco")
        assert send_signed(url, "GET", "/v1/balance")[0] == 404
        recipient_body = {"type": "business", "name": "Acme", "email": "acme@example.com"}
        recipient_body["payout"] = {
            "primary": {"method": "paypal", "currency": "USD"},
            "accounts": {"paypal": {"address": "acme@example.com"}},
        }
        status, answer = send_legacy(legacy, "POST", "/v1/recipients", recipient_body)
        assert (status, answer["recipient"]["payout"]["methodDisplay"]) == (200, "PayPal")
        status, answer = send_legacy(legacy, "GET", "/v1/profile/balances/paypal")
        assert (status, answer["balances"]["paypal"]["amount"]) == (200, "1000000.00")
        assert send_legacy(legacy, "GET", "/v1/profile/balances/acme")[0] == 200
        assert send_legacy(legacy, "GET", "/v1/profile/balances/wallet")[0] == 404


def send_legacy(url, method, path, body=None):
    data = json.dumps(body).encode() if body else None
    headers = {"X-API-Key": "simulator-api-key"}
    request = urllib.request.Request(f"{url}{path}", data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.status, json.load(refused)


KEY_LINE = json.dumps(
    {
        "merchant": "a",
        "environment": "live",
        "api_key": "hush",
        "access_key": "b",
        "secret_key": "hush",
    }
)


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "no keys"),
        ("{}\n", "line 1: access_key: missing"),
        (KEY_LINE + "\n{", "line 2: not JSON"),
        (KEY_LINE + "\n" + KEY_LINE, "line 2: api_key: line 1 already has this key"),
    ],
)  # fmt: skip
def test_invalid_credentials_are_reported_in_one_line(text, expected_text):
    result = subprocess.run(
        [*build_command(), "simulate", "--keys", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert expected_text in result.stderr
    assert "hush" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("ports", [("--port",), ("--port", "0", "--legacy-port")])
def test_port_in_use_is_reported_in_one_line(ports):
    with socket.create_server(("127.0.0.1", 0)) as occupied_socket:
        port = str(occupied_socket.getsockname()[1])
        command = [*build_command(), "simulate", *ports, port]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"payout-gateway: Cannot listen on port {port}: the port is in use; choose another\n"
    )
