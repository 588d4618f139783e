"""Which engine a request goes to, while models come, are swapped and go."""

from __future__ import annotations

import pytest
from engine_driver import generate

from helexa.config import Config
from helexa.errors import RequestError
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import LINGER_S, Roster
from ipc.leash_messages import ServeModel
from ipc.messages import Generate


def engine(instance: int, name: str = "m", state: str = "ready") -> Engine:
    made = Engine(ServeModel(name, "file:x", {"gguf": "x"}, instance=instance), Config(), 1, 0)
    made.state = state  # type: ignore[assignment]
    return made


def request(instance: int = 0, model: str = "m", resumed: bool = False) -> Generate:
    message = generate("r", [1, 2, 3])
    message.model, message.instance, message.resumed = model, instance, resumed
    return message


def roster(*engines: Engine) -> Roster:
    made = Roster()
    for item in engines:
        made.add(item)
    return made


def test_while_the_next_one_loads_the_first_is_current():
    """It becomes current when it answers; what was made for the first goes to the first, also then."""
    first, second = engine(1), engine(2, state="loading")
    models = roster(first, second)
    assert models.current() == {"m": first} and models.for_request(request()) is first
    second.state = "ready"
    assert models.current() == {"m": second} and models.for_request(request()) is second
    assert models.for_request(request(instance=1)) is first
    models.retire(1, 0.0)
    assert models.for_request(request(instance=1)) is first and models.for_request(request(instance=2)) is second
    assert [info.instance for info in models.infos()] == [2]


def test_a_failed_one_leaves_its_place_to_the_next():
    models = roster(engine(1, state="failed"), second := engine(2, state="loading"))
    assert models.current() == {"m": second}


def test_what_was_made_for_an_instance_that_is_gone_goes_to_no_other():
    """Its ids may mean something else there. Of a model that is not served at all, that is said."""
    models = roster(engine(2))
    for resumed in (False, True):
        with pytest.raises(RequestError) as caught:
            models.for_request(request(instance=1, resumed=resumed))
        assert caught.value.code == "no_worker"
    with pytest.raises(RequestError) as caught:
        models.for_request(request(model="other"))
    assert caught.value.code == "model_not_found" and "served: m" in caught.value.message


def test_a_retired_engine_stays_while_it_may_be_asked(monkeypatch):
    """For a moment after clients were told, and as long as it has requests."""
    first = engine(1)
    models = roster(first, engine(2))
    models.retire(1, 10.0)
    assert models.next_deadline() == 10.0 + LINGER_S
    assert models.take_idle(10.0 + LINGER_S - 0.1) == []
    monkeypatch.setattr(Engine, "num_requests", property(lambda self: int(self is first)))
    assert models.take_idle(10.0 + LINGER_S) == [] and models.next_deadline() is None
    monkeypatch.setattr(Engine, "num_requests", property(lambda self: 0))
    assert models.take_idle(10.0 + LINGER_S) == [first]
    assert models.get(1) is None and [item.instance for item in models] == [2]


def test_each_model_is_left_what_others_were_not_promised(monkeypatch):
    models = roster(first := engine(1), engine(2, "n"), engine(3, "o"))
    monkeypatch.setattr(Engine, "promised_bytes", property(lambda self: 10 * self.instance))
    assert models.promised_bytes(besides=first) == 50
