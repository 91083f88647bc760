"""Activity logs, payments, offline payments, and recorded requests."""


async def test_requests_are_kept_without_secrets(connect_client):
    client = await connect_client(max_kept_requests=3)
    await client.call("GET", "/v1/recipients?search=%C3%A9&page=1", headers={"X-API-Key": "k"})
    await client.call("POST", "/v1/recipients", b'{"type": "individual"}')
    client.secret_key = "wrong"
    await client.call("GET", "/v1/nothing")
    list_request, create_request, refused_request = client.service.requests
    assert (list_request.method, list_request.target) == (
        "GET",
        "/v1/recipients?search=%C3%A9&page=1",
    )
    assert (list_request.path, list_request.status) == ("/v1/recipients", 200)
    assert list_request.headers["authorization"] == "svcsign SIMULATORACCESSKEY:****"
    assert list_request.headers["x-api-key"] == "****"
    assert (create_request.body, create_request.status) == (b'{"type": "individual"}', 400)
    assert refused_request.status == 401
    assert client.service.list_requests("GET") == [list_request, refused_request]
    assert client.service.list_requests(path="/v1/recipients") == [list_request, create_request]
    assert client.service.list_requests("GET", "/v1/*") == [list_request, refused_request]
    assert client.service.list_requests("GET", "/*") == []
    client.secret_key = "simulator-secret-key"
    await client.call("GET", "/v1/recipients")
    assert len(client.service.requests) == 3
    assert list_request not in client.service.requests
