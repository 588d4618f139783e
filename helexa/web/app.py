"""The web worker's ASGI application: the whole route table, and what surrounds every route."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import falcon
import falcon.asgi
from falcon.asgi import Request, Response

from helexa.config import Config
from helexa.errors import RequestError
from helexa.web import error_envelope
from helexa.web.auth import Auth
from helexa.web.connection import SCOPE_KEY, Connection, ConnectionLimit
from helexa.web.engine_client import EngineClient
from helexa.web.middleware import ConnectionCap, RequestIds
from helexa.web.model_text import Loader, ModelTexts, read_model_text
from helexa.web.origins import Cors, HostCheck
from helexa.web.resources.chat import ChatCompletions
from helexa.web.resources.completions import Completions
from helexa.web.resources.description import OpenApi
from helexa.web.resources.embeddings import Embeddings
from helexa.web.resources.health import Health, Ready
from helexa.web.resources.messages import CountTokens, Messages
from helexa.web.resources.metrics import Metrics
from helexa.web.resources.models import ModelList, ModelOne
from helexa.web.resources.responses import Compact, Responses
from helexa.web.resources.tokens import Detokenize, Tokenize, TokenizerInfo
from helexa.web.services import Services


def create_app(config: Config, run_dir: Path, load_text: Loader = read_model_text) -> WebApp:
    """The application of one web worker. Opens nothing: sockets are opened by its lifespan start-up."""
    admission = config.admission
    engine = EngineClient(run_dir, config.default_model == "only", admission.queue_wait_s, admission.queue_depth)
    services = Services(config, run_dir, engine, ModelTexts(load_text))
    server = config.server
    doors = [RequestIds(), Cors(server), HostCheck(server), ConnectionCap(), Auth(config.keys)]
    app = WebApp(server.max_connections, middleware=[*doors, services])

    for prefix in ("/v1", ""):  # some clients leave the version out
        app.add_route(f"{prefix}/chat/completions", ChatCompletions(services))
        app.add_route(f"{prefix}/completions", Completions(services))
        app.add_route(f"{prefix}/responses", Responses(services))
        app.add_route(f"{prefix}/responses/compact", Compact(services))
        app.add_route(f"{prefix}/messages", Messages(services))
        app.add_route(f"{prefix}/messages/count_tokens", CountTokens(services))
        app.add_route(f"{prefix}/embeddings", Embeddings(services))
        app.add_route(f"{prefix}/tokenize", Tokenize(services))
        app.add_route(f"{prefix}/detokenize", Detokenize(services))
        app.add_route(f"{prefix}/tokenizer_info", TokenizerInfo(services))
        app.add_route(f"{prefix}/models", ModelList(services))
        app.add_route(f"{prefix}/models/{{name:path}}", ModelOne(services))
    app.add_route("/openapi.json", OpenApi())
    app.add_route("/health", Health())
    app.add_route("/ready", Ready(services))
    app.add_route("/metrics", Metrics(services))

    app.add_error_handler(Exception, error_envelope.on_exception)
    app.add_error_handler(falcon.HTTPError, error_envelope.on_http_error)
    app.add_error_handler(RequestError, error_envelope.on_request_error)
    return app


class WebApp(falcon.asgi.App[Request, Response]):
    """Falcon's, with the raw connection kept within reach of the resources."""

    def __init__(self, max_connections: int, **options: Any) -> None:
        super().__init__(**options)
        self._limit = ConnectionLimit(max_connections)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:  # type: ignore[override]
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        with self._limit as admitted:
            scope[SCOPE_KEY] = Connection(receive, admitted)
            await super().__call__(scope, receive, send)
