"""The `openai` package's embeddings against the real service, with tiny models that make them."""

from __future__ import annotations

import json
import math
import threading
import urllib.request

import numpy as np
import openai
import pytest
from service import serving
from tiny_model import write_tiny_model

from helexa.client import Client

pytestmark = pytest.mark.process

TEXTS = ["a cat", "The dog sleeps.", "x" * 100, "é"]


@pytest.fixture(scope="module", params=[1, 3], ids=["mean", "last"])
def service(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    model = write_tiny_model(folder / "tiny.gguf", context=512, pooling=request.param)
    with serving(folder, str(model)) as running:
        yield running


@pytest.fixture(scope="module")
def client(service):
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_alone_and_together_are_the_same(client):
    """Vectors of length 1, in order, with the same bits alone, among others, as ids and as base64; counted."""
    together = client.embeddings.create(model="tiny", input=TEXTS)
    assert [item.index for item in together.data] == list(range(len(TEXTS)))
    assert together.usage.prompt_tokens == together.usage.total_tokens == sum(len(text.encode()) for text in TEXTS)
    for text, item in zip(TEXTS, together.data, strict=True):
        alone = client.embeddings.create(model="tiny", input=text, encoding_format="float").data[0].embedding
        assert np.array(alone, np.float32).tobytes() == np.array(item.embedding, np.float32).tobytes()
        assert math.isclose(math.hypot(*alone), 1, rel_tol=1e-5) and len(alone) == 64
    assert together.data[0].embedding != together.data[1].embedding
    short = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8).data[0].embedding
    assert len(short) == 8 and math.isclose(math.hypot(*short), 1, rel_tol=1e-5)


def test_ids_are_taken(client, service):
    """Token ids in place of text, one prompt or several."""
    asked = urllib.request.Request(
        f"{service.url}/tokenize", json.dumps({"prompt": TEXTS[1]}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        ids = json.load(answer)["tokens"]
    by_text = client.embeddings.create(model="tiny", input=TEXTS[1]).data[0].embedding
    assert client.embeddings.create(model="tiny", input=ids).data[0].embedding == by_text
    assert [item.embedding for item in client.embeddings.create(model="tiny", input=[ids, ids]).data] == [by_text, by_text]


def test_what_is_refused(client):
    """Empty and over-long inputs, dimensions that the model has not, and generating from a model that only makes embeddings."""
    for fields, named in (
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": "x" * 600}, "context"),
        ({"input": "a", "dimensions": 1000}, "dimensions"),
        ({"input": "a", "extra_body": {"truncate_prompt_tokens": 5}}, "truncate_prompt_tokens"),
    ):
        with pytest.raises(openai.BadRequestError, match=named):
            client.embeddings.create(**{"model": "tiny", **fields})
    with pytest.raises(openai.BadRequestError, match="makes embeddings") as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "generation_unsupported"
    assert client.models.retrieve("tiny").model_extra["capabilities"]["embeddings"] is True


def test_over_zeromq(client, service):
    """The Python client gets the vector as it was pooled: in the direction of the one over HTTP."""
    with Client(service.run_dir) as direct:
        pooled = np.array(direct.embed([5, 6, 7]), np.float64)
    over_http = client.embeddings.create(model="tiny", input=[5, 6, 7]).data[0].embedding
    np.testing.assert_allclose(pooled / np.linalg.norm(pooled), over_http, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_death_changes_no_bit(service, client, role):
    """Vectors asked for while a process is killed, and after it, are those from before."""
    before = [item.embedding for item in client.embeddings.create(model="tiny", input=TEXTS * 8).data]
    killed = service.pid(role)
    asked: list[list[list[float]]] = []

    def ask() -> None:
        patient = client.with_options(max_retries=5)
        asked.append([item.embedding for item in patient.embeddings.create(model="tiny", input=TEXTS * 8).data])

    asking = threading.Thread(target=ask)
    asking.start()
    service.kill(role)
    asking.join()
    assert asked == [before] and service.pid(role) != killed
