"""The names of a run directory's sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipc import endpoints


def test_a_path_that_cannot_be_bound_is_refused() -> None:
    """The limit counts bytes of the longest socket's path; an error says what to do."""
    room = endpoints.PATH_LIMIT - len("/requests.ipc")
    endpoints.check_length(Path("/" + "a" * (room - 1)))
    with pytest.raises(ValueError, match=r"paths\.run"):
        endpoints.check_length(Path("/" + "a" * room))
    names = [
        endpoints.requests(Path("/r")).rpartition("/")[2],
        endpoints.workers_socket(Path("/r")).name,
        endpoints.control_socket(Path("/r")).name,
    ]
    assert max(map(len, names)) == len(endpoints.LONGEST_NAME)
