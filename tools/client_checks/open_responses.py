"""Runs the compliance tests of Open Responses against a running service: `open_responses.py SUITE URL MODEL`. Exit 1 if any differs.

SUITE is the public repository openresponses/openresponses with zod and tsx installed. What is expected is listed here, test by test; one
that is not listed is an error, so that a changed suite is read again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PASSES = (
    "basic-response",
    "assistant-phase",
    "response-output-phase-schema",
    "streaming-response",
    "system-prompt",
    "tool-calling",
    "multi-turn",
    "compact-response",
    "compact-missing-model",
)
NOT_RUN = {
    "image-input": "the default model has no vision; that it is refused as such is checked here",
    "websocket-response": "there is no WebSocket",
    "websocket-sequential-responses": "there is no WebSocket",
    "websocket-continuation": "there is no WebSocket",
    "websocket-reconnect-store-false-recovery": "there is no WebSocket",
    "websocket-previous-response-not-found": "there is no WebSocket",
    "websocket-failed-continuation-evicts-cache": "there is no WebSocket",
    "websocket-compact-new-chain": "there is no WebSocket",
}
# The suite leaves it to the model whether to call the tool, and this one is too small to see that it should: its call is forced.
TESTS = "src/lib/compliance-tests.ts"
UNFORCED = '      tools: [\n        {\n          type: "function",\n          name: "get_weather",'
FORCED = '      tool_choice: "required",\n' + UNFORCED

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


def prepare(suite: Path) -> set[str]:
    """Forces the call, in the copy; returns the ids of its tests."""
    path = suite / TESTS
    text = path.read_text(encoding="utf-8")
    if FORCED not in text:
        if text.count(UNFORCED) != 1:
            raise SystemExit(f"{TESTS} asks for its tool in other words: read the suite again")
        text = text.replace(UNFORCED, FORCED)
        path.write_text(text, encoding="utf-8")
    templates = text.partition("export const testTemplates")[2].partition("\nasync function")[0]
    return {line.split('"')[1] for line in templates.splitlines() if line.startswith('    id: "')}


def run(suite: Path, url: str, model: str) -> dict[str, dict[str, Any]]:
    """The result of each test by its id."""
    command = ["node", "--import", "tsx", "bin/compliance-test.ts", "-u", f"{url}/v1", "-k", "none", "-m", model, "--json"]
    done = subprocess.run([*command, "--filter", ",".join(PASSES)], cwd=suite, capture_output=True, text=True, check=False)
    start = done.stdout.find("{")
    if start < 0:
        raise SystemExit(f"the suite did not run:\n{done.stdout}{done.stderr}")
    return {result["id"]: result for result in json.loads(done.stdout[start:])["results"]}


def image_refusal(url: str, model: str) -> str | None:
    """What is wrong with the answer to an image; None if nothing is."""
    body = {"model": model, "input": [{"role": "user", "content": [IMAGE]}]}
    request = urllib.request.Request(f"{url}/v1/responses", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return f"an image got {answer.status}"
    except urllib.error.HTTPError as error:
        code = json.loads(error.read())["error"]["code"]
        return None if (error.code, code) == (400, "vision_unsupported") else f"an image got {error.code}, {code}"


def main() -> int:
    suite, url, model = Path(sys.argv[1]), *sys.argv[2:]
    found = prepare(suite)
    unknown = found ^ {*PASSES, *NOT_RUN}
    if unknown:
        raise SystemExit(f"the suite has other tests than are listed here: {', '.join(sorted(unknown))}")
    results, failed = run(suite, url, model), 0
    for id in PASSES:
        result = results.get(id, {"status": "missing"})
        failed += result["status"] != "passed"
        print(f"{result['status']:9}{id} {'; '.join(result.get('errors') or [])[:500]}".rstrip())
    for id, why in NOT_RUN.items():
        print(f"not run  {id}: {why}")
    wrong = image_refusal(url, model)
    print(wrong or "an image is refused: vision_unsupported")
    print(f"{len(PASSES) - failed} of {len(PASSES)} passed")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
