import os
import re

from gateway.http.request_reader import IDS_PER_READ, generate_hex_id


def test_tokens_are_unique_and_shaped_like_request_ids() -> None:
    tokens = [generate_hex_id() for _ in range(3 * IDS_PER_READ)]
    assert len(set(tokens)) == len(tokens)
    assert all(re.fullmatch("[0-9a-f]{24}", text) for text in tokens)


def test_forked_process_has_other_tokens() -> None:
    generate_hex_id()
    read_end, write_end = os.pipe()
    if (child_id := os.fork()) == 0:
        os.write(write_end, generate_hex_id().encode())
        os._exit(0)
    os.waitpid(child_id, 0)
    with os.fdopen(read_end) as stream:
        os.close(write_end)
        assert stream.read() not in [generate_hex_id() for _ in range(IDS_PER_READ)]
