import os
import re

from gateway.http.request_ids import IDS_PER_READ, generate_id


def test_no_two_are_the_same_and_each_looks_as_request_ids_do() -> None:
    made = [generate_id() for _ in range(3 * IDS_PER_READ)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[0-9a-f]{24}", one) for one in made)


def test_a_forked_process_has_others() -> None:
    generate_id()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, generate_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        os.close(writing)
        assert told.read() not in [generate_id() for _ in range(IDS_PER_READ)]
