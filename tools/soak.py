"""Mixes everything that happens to a service, for minutes, and checks that it shows in nothing.

    python tools/soak.py [--minutes 10] [--seed 0] [--ranks 1] [MODEL.gguf]

Streams of many lengths and kinds are read, cancelled, stalled and broken off; nonsense is sent; the configuration is reloaded, models
are swapped; the device worker, the scheduler and web workers are killed or stopped, the supervisor and all of it nap. Every stream that
was read must end with the very ids and text of its solo run. Afterwards memory and descriptors are as before, and once the service has
ended nothing is left. Exit code 1 for any difference. It needs the packages of the `test` extra; without a model it makes a tiny one.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from service import ROLES, Service, serving, wait_until_gone  # noqa: E402
from tiny_model import write_tiny_model  # noqa: E402
from transcripts import Body, Transcript, stream  # noqa: E402

from tools.fuzz import Finding, HttpTarget  # noqa: E402

READERS = 8
BODIES = 24
SETTINGS = "[watch]\nheartbeat_s = 1.0\n[streaming]\ncredit_tokens = 64\n[admission]\nqueue_depth = {depth}\n[model]\ncontext = {context}\n"
ASK_AGAIN = ("scheduler_down", "no_worker")
DISTURB_EVERY_S = 4.0
MAY_GROW_MIB = 64
MAY_GROW_DESCRIPTORS = 8
NAP_S = 3.0
SHORT_NAP_S = 0.6  # a scheduler's, that is not taken for hung
STREAM_WITHIN_S = 120.0  # a stream that takes longer hangs
REPORT_LINES = 60  # of the service, that a failure is printed with


class Failure(Exception):
    """What should not have happened."""


def requests(random_: random.Random) -> list[Body]:
    """Streams short and long, greedy, sampled, penalised, constrained."""
    kinds: list[Body] = [
        {"temperature": 0},
        {"temperature": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
        {"temperature": 0.9, "guided_regex": "([a-p]{3,9} ){20,40}"},
        {"temperature": 0.7, "n": 2},
        {"temperature": 0.7, "stop": ["e", "zz"]},
    ]
    return [
        {
            "model": "soak",
            "prompt": "".join(random_.choice("abcdefg \n") for _ in range(random_.choice([1, 10, 60, 200]))),
            "max_tokens": random_.choice([1, 8, 40, 120, 250]),
            "seed": number,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **kinds[number % len(kinds)],
        }
        for number in range(BODIES)
    ]


class Soak:
    def __init__(self, service: Service, folder: Path, seed: int, every_s: float, ranks: int) -> None:
        self.service, self.folder, self.every_s = service, folder, every_s
        self.workers = ["worker"] if ranks == 1 else [f"rank {rank}" for rank in range(ranks)]
        self.random = random.Random(seed)
        self.bodies = requests(self.random)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.web_kills = 0  # two for each; odd while one is being killed
        self.last = "nothing"  # what was done to the service
        self.over = threading.Event()
        self.settings = {"depth": 256, "context": 512}
        self._lock = threading.Lock()
        self.expected = [self._stream(number) for number in range(len(self.bodies))]
        if not all(seen.whole for seen in self.expected):
            raise Failure(f"a solo run is not whole: {next(seen for seen in self.expected if not seen.whole)}")

    def run(self, seconds: float) -> None:
        """Raises Failure."""
        self._rest()
        before = self._sizes()
        readers = [threading.Thread(target=self._read, args=(self.random.random(),), daemon=True) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        try:
            self._disturb(time.monotonic() + seconds)
        finally:
            self.over.set()
        if not self.failures:
            for reader in readers:
                reader.join(2 * STREAM_WITHIN_S)
        if not self.failures:
            self._rest()
            self._compare(before, self._sizes())
            self._bound_refusals()
        if self.failures:
            raise Failure("\n".join(self.failures[:5]))

    def _disturb(self, deadline: float) -> None:
        """Until the deadline, or until something has failed."""
        disturbances = self._disturbances()
        while time.monotonic() < deadline and not self.failures:
            self.over.wait(min(self.every_s, max(0.0, deadline - time.monotonic())))
            if time.monotonic() < deadline and not self.failures:
                next(disturbances)()

    # those who ask

    def _read(self, seed: float) -> None:
        random_ = random.Random(seed)
        hostile: HttpTarget | None = None
        try:
            while not self.over.is_set():
                kind = random_.choices(["read", "cancel", "stall", "nonsense"], [10, 3, 1, 2])[0]
                number = random_.randrange(len(self.bodies))
                if kind == "nonsense":
                    hostile = hostile or HttpTarget(self.service.run_dir)
                    hostile.send(random_)
                elif kind == "cancel":
                    self._break_off(self.bodies[number], random_.randrange(30))
                else:
                    self._whole(number, 0.5 if kind == "stall" else 0.0)
                self._count(kind)
        except Finding as finding:
            if not self.web_kills:
                self.failures.append(str(finding))
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _count(self, kind: str) -> None:
        with self._lock:
            self.done[kind] += 1

    def _whole(self, number: int, stall_s: float) -> None:
        """Reads a stream to its end; with a stall, without reading on for a while in the middle of it."""
        kills = self.web_kills
        seen = self._stream(number, stall_s)
        if seen == self.expected[number]:
            return
        if not seen.done and (kills % 2 or self.web_kills != kills):
            return  # its own web worker was killed
        if isinstance(seen.error, tuple) and seen.error[0] == 503 and seen.error[1]["code"] in ASK_AGAIN:
            self._count("asked again")  # the next scheduler or worker takes long to start: told before anything began
            return
        self.failures.append(f"stream {number} differs, after {self.last}:\n{seen}\nnot\n{self.expected[number]}")

    def _stream(self, number: int, stall_s: float = 0.0) -> Transcript:
        """Raises Failure for one that does not end: keep-alives come, and nothing else."""
        lines, started = 0, time.monotonic()

        def on_line() -> None:
            nonlocal lines
            lines += 1
            if time.monotonic() > started + STREAM_WITHIN_S:
                raise Failure(f"stream {number} hangs, after {self.last}: {lines} lines in {STREAM_WITHIN_S:g} s")
            if stall_s and lines == 20:
                time.sleep(stall_s)

        return stream(self.service.port, self.bodies[number], on_line)

    def _break_off(self, body: Body, after: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            for _ in range(after):
                if not response.readline():
                    break
        except (OSError, http.client.HTTPException):
            if not self.web_kills:
                raise
        finally:
            connection.close()

    # those who disturb

    def _disturbances(self) -> Any:
        """One after the other, in rounds; a role dies at most five times a minute, or it would be given up."""
        last: dict[str, float] = {}
        actions: list[tuple[str, Callable[[], None]]] = [
            ("worker", lambda: self._kill("worker", signal.SIGKILL)),
            ("settings", lambda: self._reload(depth=256 + self.random.randrange(50))),
            ("web", lambda: self._kill("web", signal.SIGKILL)),
            ("scheduler", lambda: self._kill("scheduler", signal.SIGKILL)),
            ("worker", lambda: self._kill("worker", signal.SIGSTOP)),
            ("model", lambda: self._reload(context=500 + self.random.randrange(12))),
            ("scheduler", lambda: self._kill("scheduler", signal.SIGSTOP)),
            ("worker", self._kill_unseen),
            ("supervisor", lambda: self._nap("supervisor")),
            ("everybody", lambda: self._nap(*ROLES)),
        ]
        while True:
            for role, action in actions:
                if time.monotonic() - last.get(role, -100.0) < 11.0:
                    yield lambda: None
                else:
                    last[role] = time.monotonic()
                    yield action

    def _kill(self, role: str, number: signal.Signals) -> None:
        process = self.random.choice(self.workers) if role == "worker" else role
        self.last = f"{number.name} of the {process}"
        self.web_kills += role == "web"
        dead = self.service.kill(process, number)
        if wait_until_gone([dead]):
            self.failures.append(f"the {role} outlived {number.name}")
        self.web_kills += role == "web"
        self.done[f"{role} {number.name}"] += 1

    def _kill_unseen(self) -> None:
        """The worker is killed while the scheduler naps: when it wakes, the next worker may be there already."""
        self.last = "SIGKILL of the worker while the scheduler napped"
        scheduler = self.service.kill("scheduler", signal.SIGSTOP)
        self._kill("worker", signal.SIGKILL)
        self.over.wait(SHORT_NAP_S)
        with contextlib.suppress(ProcessLookupError):  # it was taken for hung
            os.kill(scheduler, signal.SIGCONT)

    def _nap(self, *roles: str) -> None:
        """Processes are stopped for longer than one is waited for, and go on."""
        self.last = f"a nap of {', '.join(roles)}"
        processes = [process for role in roles for process in (self.workers if role == "worker" else [role])]
        stopped = [self.service.kill(process, signal.SIGSTOP) for process in processes]
        self.over.wait(NAP_S)
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.done[f"nap of {len(roles)}"] += 1

    def _reload(self, **changed: int) -> None:
        self.last = f"a reload of {changed}"
        self.settings.update(changed)
        (self.folder / "helexa.toml").write_text(SETTINGS.format(**self.settings))
        answer = ask(self.service, "reload")
        if not answer.get("ok"):
            self.failures.append(f"a reload failed: {answer}")
        self.done[f"reload {min(changed)}"] += 1

    # what is left of it

    def _rest(self) -> None:
        """Waits until nothing runs, and every role has one process."""
        deadline = time.monotonic() + 60
        while True:
            try:
                models = self.service.status()["models"]
                if len(models) == 1 and models[0]["state"] == "ready" and not models[0]["running"] + models[0]["blocks_used"]:
                    return
            except (OSError, ValueError, KeyError):
                models = []
            if time.monotonic() > deadline:
                raise Failure(f"it does not come to rest: {models}")
            time.sleep(0.1)

    def _sizes(self) -> dict[str, tuple[float, int]]:
        """(MiB of memory, descriptors) of each role."""
        sizes = {}
        for role in ROLES:
            process = psutil.Process(self.service.pid(role))
            sizes[role] = (process.memory_info().rss / 2**20, process.num_fds())
        return sizes

    def _bound_refusals(self) -> None:
        """A reader may be told to ask again while a process is replaced, not as a rule."""
        replaced = sum(count for name, count in self.done.items() if name.startswith(("scheduler SIG", "worker SIG")))
        if self.done["asked again"] > READERS * replaced:
            self.failures.append(
                f"{self.done['asked again']} requests were told to ask again, {replaced} processes were replaced"
            )

    def _compare(self, before: dict[str, tuple[float, int]], after: dict[str, tuple[float, int]]) -> None:
        for role, (memory, descriptors) in before.items():
            if after[role][0] > memory + MAY_GROW_MIB or after[role][1] > descriptors + MAY_GROW_DESCRIPTORS:
                self.failures.append(f"the {role} grew from {memory:.0f} MiB, {descriptors} descriptors to {after[role]}")


def ask(service: Service, command: str) -> dict[str, Any]:
    """The control socket's answer."""
    with socket.socket(socket.AF_UNIX) as operator:
        operator.settimeout(60)
        operator.connect(str(service.run_dir / "control.sock"))
        operator.sendall(json.dumps({"v": 1, "cmd": command}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(operator.makefile().readline())
        return answer


def state(service: Service) -> str:
    """What the service says of itself: its status, and the end of its report."""
    try:
        status = json.dumps(ask(service, "status"))
    except (OSError, ValueError) as error:
        status = f"no status: {type(error).__name__}: {error}"
    return "\n".join(["", status, "".join(service.report[-REPORT_LINES:])])


def soak(folder: Path, model: Path, seconds: float, seed: int, every_s: float = DISTURB_EVERY_S, ranks: int = 1) -> Counter[str]:
    """What was done, how often, with a disturbance every so many seconds. Raises Failure; the service's own remains raise AssertionError."""
    (folder / "helexa.toml").write_text(SETTINGS.format(depth=256, context=512))
    with serving(folder, str(model), "--name", "soak", "--tensor-parallel", str(ranks)) as service:
        try:
            run = Soak(service, folder, seed, every_s, ranks)
            run.run(seconds)
        except (Failure, OSError, ValueError, AssertionError) as failure:
            raise Failure(f"{type(failure).__name__}: {failure}\n{state(service)}") from failure
    return run.done


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Mixes streams, cancels, stalls, nonsense, reloads and kills, and checks all of it."
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, default=1, help="device workers that hold the model together (a tiny one: 2 at most)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            model = options.model or write_tiny_model(folder / "tiny.gguf")
            done = soak(folder, model, options.minutes * 60, options.seed, ranks=options.ranks)
        except (Failure, AssertionError) as error:
            print(error)
            return 1
    print(", ".join(f"{name}: {count}" for name, count in sorted(done.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
