"""Streams a completion to the terminal over ZeroMQ, with no HTTP in between.

    python -m tools.zmq_generate "Once upon a time" --port 8000 --max-tokens 64 --temperature 0
    python -m tools.zmq_generate --chat "Why is the sky blue?"

The tokenizer is read from the model file that the scheduler names, so this runs on the server's machine, as its user.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from helexa import config
from helexa.client import Client
from helexa.errors import HelexaError, RequestError
from helexa.formats.checkpoint import model_path
from helexa.web.model_text import read_model_text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream a completion over ZeroMQ.")
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message, for the model's chat template")
    parser.add_argument("--port", type=int, default=8000, help="of the server; names its run directory")
    parser.add_argument("--run-dir", type=Path, help="the server's run directory, if it is not the default one")
    parser.add_argument("--model", help="a served model; needed when there are several")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="repeats a reply")
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    run_dir = args.run_dir or Path(config.load(None, {}).paths.run) / str(args.port)
    with Client(run_dir, name="zmq_generate") as client:
        models = {model["name"]: model for model in client.models()}
        name = args.model or (next(iter(models)) if len(models) == 1 else None)
        if name not in models:
            raise RequestError("model_not_found", f"choose one with --model: {', '.join(models) or 'no model is served'}")
        text = read_model_text(model_path(models[name]["files"]))
        prompt = text.chat_format().render([{"role": "user", "content": args.prompt}], [], {}) if args.chat else args.prompt
        ids = text.encode(prompt, models[name]["context"], bos=not args.chat)
        options = {"temperature": args.temperature, "top_p": args.top_p}
        generation = client.generate(ids, model=name, max_tokens=args.max_tokens, seed=args.seed, **options)
        for token in generation:
            sys.stdout.buffer.write(text.tokenizer.token_bytes(token.id))
            sys.stdout.buffer.flush()
        print()
        finish = generation.finish
        if finish is not None:
            print(f"{finish.reason}: {finish.prompt_tokens} prompt tokens, {finish.output_tokens} output tokens", file=sys.stderr)
    return 0 if finish is not None and finish.reason in ("stop", "length") else 1


def main() -> int:
    try:
        return run(arguments())
    except HelexaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
