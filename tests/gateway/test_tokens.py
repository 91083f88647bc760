import os
import re

from gateway.http.request_ids import AT_ONCE, token


def test_no_two_are_the_same_and_each_looks_as_request_ids_do() -> None:
    made = [token() for _ in range(3 * AT_ONCE)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[0-9a-f]{24}", one) for one in made)


def test_a_forked_process_has_others() -> None:
    token()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, token().encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        os.close(writing)
        assert told.read() not in [token() for _ in range(AT_ONCE)]
