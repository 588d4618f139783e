"""The words of HELEXA_FAULT."""

from __future__ import annotations

import pytest

from helexa import config as configuration
from helexa.errors import ConfigError
from helexa.formats.fault_spec import ALWAYS, FaultSpec, parse


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("device", FaultSpec("device", 1, None, 1)),
        ("hang:step=7", FaultSpec("hang", 7, None, 1)),
        ("row:token=0", FaultSpec("row", None, 0, ALWAYS)),
        ("crash:step=2,lives=3", FaultSpec("crash", 2, None, 3)),
        ("crash:lives=3,token=9", FaultSpec("crash", None, 9, 3)),
        ("hang:step=7,rank=1", FaultSpec("hang", 7, None, 1, 1)),
    ],
)
def test_what_is_said_is_meant(text, spec):
    """Kind, when, how often."""
    assert parse(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fire",
        "device:step",
        "device:step=-1",
        "device:step=0",
        "device:step=1,step=2",
        "row:token=1,step=1",
        "row:when=now",
        "row:rank=1",
        "request:rank=2",
    ],
)
def test_what_is_not_understood_is_refused(text):
    """Before anything starts."""
    with pytest.raises(ConfigError, match="HELEXA_FAULT"):
        parse(text)


def test_faults_need_the_configurations_word():
    """The variable alone does nothing but stop the start."""
    plain, debug = configuration.load(None, {}), configuration.load(None, {"debug.faults": True})
    assert configuration.injected_fault(plain, {}) == "" == configuration.injected_fault(debug, {})
    assert configuration.injected_fault(debug, {"HELEXA_FAULT": "row"}) == "row"
    with pytest.raises(ConfigError, match=r"debug\.faults is not"):
        configuration.injected_fault(plain, {"HELEXA_FAULT": "row"})
    two = configuration.load(None, {"debug.faults": True, "devices.tensor_parallel": 2})
    assert configuration.injected_fault(two, {"HELEXA_FAULT": "hang:rank=1"}) == "hang:rank=1"
    with pytest.raises(ConfigError, match="there are ranks 0 to 0"):
        configuration.injected_fault(debug, {"HELEXA_FAULT": "hang:rank=1"})
    with pytest.raises(ConfigError, match="no fault"):
        configuration.injected_fault(debug, {"HELEXA_FAULT": "rows"})
