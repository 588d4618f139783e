"""The names of the sockets in a run directory. Pure: paths in, paths out; `check_length` guards the system's limit."""

from __future__ import annotations

from pathlib import Path

PATH_LIMIT = 107  # bytes of sun_path, without its closing zero
LONGEST_NAME = "requests.ipc"


def requests(run_dir: Path) -> str:
    """Where clients (web workers, scripts) reach the scheduler: a ZeroMQ endpoint, ROUTER there, DEALER here."""
    return f"ipc://{run_dir / 'requests.ipc'}"


def workers_socket(run_dir: Path) -> Path:
    """Where device workers reach the scheduler: a unix SEQPACKET socket."""
    return run_dir / "workers.sock"


def control_socket(run_dir: Path) -> Path:
    """Where an operator reaches the scheduler: a unix stream socket, one JSON line each way."""
    return run_dir / "control.sock"


def check_length(run_dir: Path) -> None:
    """Raises ValueError, with the limit, when a socket of this run directory could not be bound."""
    longest = len(str(run_dir / LONGEST_NAME).encode())
    if longest > PATH_LIMIT:
        raise ValueError(
            f"{run_dir}: socket paths there have {longest} bytes, at most {PATH_LIMIT} can be bound; choose a shorter paths.run"
        )
