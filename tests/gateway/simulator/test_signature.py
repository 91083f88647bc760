import pytest

from tests.simulator import ServiceCredentials, ServiceOptions

INVALID_KEY_ERRORS = [("invalid_api_key", None)]


async def test_signature_matches_document(client):
    # printf '1760000000\nGET\n/v1/recipients\n\n' | openssl dgst -sha256 -hmac simulator-secret-key
    assert client.sign("1760000000", "GET", "/v1/recipients", b"") == (
        "7be880cd7355b74b75dcb582035c6c8ae8dfba6a6773b31c00a61fd5cadf3cb3"
    )


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "svcsign",
        "svcsign SIMULATORACCESSKEY",
        "svcsign SIMULATORACCESSKEY:",
        "svcsign SIMULATORACCESSKEY:" + "0" * 64,
        "svcsign SIMULATORACCESSKEY:é",
        "svcsign NOSUCHKEY:" + "0" * 64,
        "Bearer SIMULATORACCESSKEY:" + "0" * 64,
    ],
)
async def test_other_authorization_is_an_invalid_key(client, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    url = client.simulator.url + "/v1/recipients"
    async with client.session.get(url, headers=headers) as response:
        assert response.status == 401
        assert (await response.json())["errors"][0]["code"] == "invalid_api_key"


async def test_signature_covers_method_path_and_body(client):
    signature = client.sign("1760000000", "GET", "/v1/recipients", b"")
    headers = {"Authorization": f"svcsign SIMULATORACCESSKEY:{signature}"}
    timestamp = "1760000000"
    accepted_response = await client.call(
        "GET", "/v1/recipients", timestamp=timestamp, headers=headers
    )
    assert accepted_response.status == 200
    for method, target, body in [
        ("DELETE", "/v1/recipients", None),
        ("GET", "/v1/recipients/R-1", None),
        ("GET", "/v1/recipients", b" "),
    ]:
        rejected_response = await client.call(
            method, target, body, timestamp=timestamp, headers=headers
        )
        assert (rejected_response.status, rejected_response.errors) == (401, INVALID_KEY_ERRORS)


@pytest.mark.parametrize(
    ("age", "status"), [(0, 200), (30, 200), (31, 401), (-30, 200), (-31, 401), (3600, 401)]
)
async def test_timestamp_is_valid_for_thirty_seconds_either_way(client, age, status):
    timestamp = str(int(client.service.clock()) - age)
    assert (await client.call("GET", "/v1/recipients", timestamp=timestamp)).status == status


async def test_signed_path_excludes_query_by_default(client):
    assert (await client.call("GET", "/v1/recipients?page=1")).status == 200
    client.signs_query = True
    assert (await client.call("GET", "/v1/recipients?page=1")).status == 401
    assert (await client.call("GET", "/v1/recipients")).status == 200


async def test_signed_path_can_include_query(connect_client):
    client = await connect_client(options=ServiceOptions(signed_target="path-and-query"))
    assert (await client.call("GET", "/v1/recipients?page=1")).status == 401
    client.signs_query = True
    assert (await client.call("GET", "/v1/recipients?search=%E2%82%AC&page=1")).status == 200


async def test_each_merchant_and_environment_is_separate(connect_client):
    keys = [
        ServiceCredentials("AK1", "one", "acme", "live"),
        ServiceCredentials("AK2", "two", "acme", "live"),
        ServiceCredentials("AK3", "three", "acme", "sandbox"),
        ServiceCredentials("AK4", "four", "other", "live"),
    ]
    client = await connect_client(credentials=keys)
    client.access_key, client.secret_key = "AK1", "one"
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}"
    results_by_access_key = {}
    for key in keys:
        client.access_key, client.secret_key = key.access_key, key.secret_key
        answer = await client.call("GET", "/v1/recipients")
        response = await client.call("GET", path)
        results_by_access_key[key.access_key] = (answer.json["meta"]["records"], response.status)
    assert results_by_access_key == {
        "AK1": (1, 200),
        "AK2": (1, 200),
        "AK3": (0, 404),
        "AK4": (0, 404),
    }
