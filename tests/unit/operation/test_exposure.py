"""Who can reach the service: a warning in capitals where anybody can."""

from __future__ import annotations

import pytest

from helexa import exposure
from helexa.config_tables import Config, Keys, Server
from helexa.keys import key_file
from helexa.keys.key_file import KeyFileError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_silent(host):
    assert exposure.check(Config(server=Server(host=host))) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "server.example"])
def test_elsewhere_without_keys_is_shouted(host):
    """It names the address and both remedies."""
    warning = exposure.check(Config(server=Server(host=host)))
    assert "WARNING" in warning and "WITHOUT API KEYS" in warning and host in warning
    assert "helexa keys add" in warning and "127.0.0.1" in warning


def test_with_keys_it_is_silent_and_the_file_is_read_first(tmp_path):
    """A service whose key file cannot be believed does not start."""
    config = Config(server=Server(host="0.0.0.0"), keys=Keys(file=str(tmp_path / "keys.json")))
    with pytest.raises(KeyFileError):
        exposure.check(config)
    key_file.save(tmp_path / "keys.json", [])
    assert exposure.check(config) == ""
