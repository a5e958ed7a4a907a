"""The scripted model behind a real server: what it says reaches the client, however many tokens come per step."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from nextfit.server.service import Service
from tests.server.scripted import running
from tests.support.scripted_server import MODULE, load

ANSWERS = {"tell me": "Ein schöner Tag 🦙, 한국어.", "count": "one two three"}
ROOT = Path(__file__).parent.parent.parent


def ask(url: str, text: str, **fields: Any) -> str:
    body = {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "enable_thinking": False,
        **fields,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
    if not fields.get("stream"):
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events)


def test_answers_by_prompt() -> None:
    service = Service(load(ANSWERS, tokens_per_step=4, wrong_at=3))
    with running(service) as url:
        for stream in (False, True):
            assert ask(url, "please tell me", stream=stream) == ANSWERS["tell me"]
            assert ask(url, "tell me, or count", stream=stream) == ANSWERS["count"]
        assert ask(url, "nothing of it", max_tokens=4) != ""


def test_a_server_of_its_own() -> None:
    options = json.dumps({"answers": ANSWERS, "fail_at": 5})
    command = [sys.executable, "-m", MODULE, options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.match(r"ready at (\S+);", server.stdout.readline())
            assert found is not None
            assert ask(found[1], "count", max_tokens=2) == "one two"
            body = {"messages": [{"role": "user", "content": "tell me"}]}
            assert httpx.post(f"{found[1]}/v1/chat/completions", json=body, timeout=20).status_code == 500
            health = httpx.get(f"{found[1]}/health")
            assert health.status_code == 503 and "planted in step 5" in health.text
        finally:
            server.send_signal(signal.SIGTERM)
