#!/usr/bin/env bash
# Checks that take minutes or fetch much: tools/long_checks.sh NAME, or no name for the list. Work goes to .long_checks/ (kept between
# runs); what a check installs goes to an environment of its own there. Exit 0: everything passed.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT="$PWD"
WORK="$ROOT/.long_checks"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
PORT="${PORT:-8765}"
URL="http://127.0.0.1:$PORT"
MODEL=smollm2
CHECKS="$ROOT/tools/client_checks"
SERVICE=""
BESIDE="" # the pid of what runs beside the service

# environment NAME PACKAGE...: WORK/NAME/bin/python with these packages
environment() {
    local name="$1"
    shift
    [ -x "$WORK/$name/bin/python" ] || "$PYTHON" -m venv "$WORK/$name"
    "$WORK/$name/bin/pip" install -q "$@"
}

# serve CONFIG: starts the service with this text as its configuration, and waits until it is ready
serve() {
    stop
    printf '%s\n' "$1" >"$WORK/helexa.toml"
    HELEXA_CONFIG="$WORK/helexa.toml" "$PYTHON" -P -m helexa.cli serve "$MODEL" --port "$PORT" 2>"$WORK/service.log" &
    SERVICE=$!
    "$PYTHON" - "$URL/ready" "$SERVICE" <<'WAIT' || { cat "$WORK/service.log"; exit 1; }
import os, sys, time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen(sys.argv[1])
        sys.exit(0)
    except OSError:
        os.kill(int(sys.argv[2]), 0)
        time.sleep(0.5)
sys.exit(1)
WAIT
}

stop() {
    [ -z "$SERVICE" ] || { kill -INT "$SERVICE"; wait "$SERVICE" || true; }
    [ -z "$BESIDE" ] || { kill "$BESIDE"; wait "$BESIDE" || true; }
    SERVICE="" BESIDE=""
}

# Client libraries, unchanged, against the real service with the default model. Their bodies are recorded on the way.
clients() {
    local failed=0 direct="$URL" recorded="$WORK/recorded.json"
    environment python_clients "litellm==1.110.2" "langchain-openai==1.7.4" "pydantic-ai-slim[openai]==2.38.0" \
        "instructor==1.17.0" "openai-agents==0.24.0" "llm==0.36"
    environment lm_eval "lm-eval[api]==0.4.13"
    mkdir -p "$WORK/node" && cp "$CHECKS/package.json" "$CHECKS/node_clients.mjs" "$WORK/node"
    (cd "$WORK/node" && npm install --silent --no-fund --no-audit)

    serve '[sampling]
unseeded = "prompt"'
    "$PYTHON" "$CHECKS/recording_proxy.py" "$((PORT + 1))" "$direct" "$recorded" &
    BESIDE=$!
    URL="http://127.0.0.1:$((PORT + 1))"
    "$WORK/python_clients/bin/python" "$CHECKS/python_clients.py" "$URL" "$MODEL" || failed=1
    node "$WORK/node/node_clients.mjs" "$URL" "$MODEL" || failed=1
    evaluate || failed=1
    URL="$direct"
    "$PYTHON" "$CHECKS/recorded_bodies.py" "$recorded" "$ROOT/tests/clients/recorded_bodies.json" || failed=1
    return "$failed"
}

# Every answer against two descriptions: our own, with bodies that schemathesis makes up, and OpenAI's.
schemas() {
    local failed=0 spec="$WORK/openai-openapi"
    environment schemathesis "schemathesis==4.32.5"
    [ -d "$spec" ] || git clone -q --depth 1 https://github.com/openai/openai-openapi "$spec"
    # what a schema cannot say, as that a choice of tools must be among the tools, is refused though the schema allows it
    serve 'default_model = "only"
[model]
context = 80
[sampling]
unseeded = "prompt"'
    "$WORK/schemathesis/bin/schemathesis" run "$ROOT/helexa/web/openapi.json" --url "$URL" --max-examples 15 --seed 1 \
        --request-timeout 60 --phases coverage,fuzzing --exclude-checks positive_data_acceptance --warnings off || failed=1
    serve ''
    "$WORK/schemathesis/bin/python" "$CHECKS/openai_schema.py" "$spec/openapi.json" "$URL" "$MODEL" || failed=1
    return "$failed"
}

# llama.cpp's own server tests; what they do not run, or not as they are, is listed in llamacpp_suite.py.
llama_suite() {
    local key
    environment llamacpp_suite pytest requests wget filelock prometheus-client aiohttp numpy openai
    rm -f "$WORK/keys.json"
    printf '[keys]\nfile = "keys.json"\n' >"$WORK/helexa.toml"
    key="$(HELEXA_CONFIG="$WORK/helexa.toml" "$PYTHON" -P -m helexa.cli keys add suite | grep -o 'hx-[^ ]*')"
    serve 'default_model = "only"
[keys]
file = "keys.json"
[server]
cors_origins = ["localhost", "web.mydomain.fr"]
[model]
context = 1024
[sampling]
unseeded = "prompt"'
    "$WORK/llamacpp_suite/bin/python" "$CHECKS/llamacpp_suite.py" "$WORK" "$URL" "$MODEL" "$key"
}

# The compliance tests of Open Responses; what is expected of each is listed in open_responses.py.
open_responses() {
    local suite="$WORK/openresponses"
    [ -d "$suite" ] || git clone -q --depth 1 https://github.com/openresponses/openresponses "$suite"
    (cd "$suite" && npm install --silent --no-fund --no-audit --no-save --ignore-scripts "zod@3.25.76" tsx)
    serve ''
    "$PYTHON" "$CHECKS/open_responses.py" "$suite" "$URL" "$MODEL"
}

# lm-eval on two small tasks: likelihoods by prompt log probabilities, and generation, as text and as chat
evaluate() {
    local tasks="$WORK/tasks" task
    mkdir -p "$tasks"
    for task in helexa_choice helexa_generate; do
        sed "s#QUESTIONS#$CHECKS/tasks/questions.json#" "$CHECKS/tasks/$task.yaml" >"$tasks/$task.yaml"
    done
    export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 OPENAI_API_KEY=none
    "$WORK/lm_eval/bin/lm_eval" --model local-completions --include_path "$tasks" --tasks helexa_choice,helexa_generate --model_args \
        "model=$MODEL,base_url=$URL/v1/completions,tokenizer_backend=remote,num_concurrent=2" | tee "$WORK/lm_eval.txt"
    grep -Eq 'helexa_choice.*acc.* 1\.0' "$WORK/lm_eval.txt" || { echo "the likelier continuations are not the right ones"; return 1; }
    "$WORK/lm_eval/bin/lm_eval" --model local-chat-completions --include_path "$tasks" --tasks helexa_generate --apply_chat_template \
        --model_args "model=$MODEL,base_url=$URL/v1/chat/completions,num_concurrent=2"
}

# Every case of the kill matrix, all inputs of the fuzzer, a long soak; --timeout is a test's, in seconds.
kills() { "$PYTHON" -m pytest -m "process or long" --timeout 300 tests/process/test_kill_matrix.py; }
fuzz() { "$PYTHON" -m pytest -m long tests/security; }
soak() { "$PYTHON" tools/soak.py --minutes "${MINUTES:-10}" --seed "${SEED:-0}"; }

case "${1:-}" in
clients | schemas | llama-suite | open-responses | kills | fuzz | soak)
    mkdir -p "$WORK"
    trap stop EXIT
    "${1//-/_}"
    ;;
*)
    echo "usage: tools/long_checks.sh clients | schemas | llama-suite | open-responses | kills | fuzz | soak"
    exit 2
    ;;
esac
