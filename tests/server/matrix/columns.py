"""The columns of the matrix: what requests differ in, what cannot go together and why, and a row as a request.

A new column is a line in `FACTORS`, what it puts into the body in `request` (or what it does to the engine, in
`engines`), and what must have happened where it is on, in `rows.happened`. What it excludes is a line in `IMPOSSIBLE`.
"""

from __future__ import annotations

from typing import Any

from tests.server.test_refusals import schema, tool
from tests.support.pairwise import Cell, Pair, Row, all_pairs, pair
from tests.support.pairwise import Value as Value

FACTORS: dict[str, list[Value]] = {
    "api": ["chat", "completions", "messages", "responses"],
    "stream": ["whole", "streamed"],
    "thinking": ["off", "on", "budget"],
    "tools": ["none", "auto", "required"],
    "form": ["free", "json", "regex"],
    "drafts": [0, 4],
    "prefix": ["cold", "hit"],
    "prefill": ["whole", "chunked"],
    "leaves": ["never", "before a token", "among tokens"],
    "penalties": ["off", "on"],
    "logprobs": ["off", "on"],
    "n": [1, 2],
    "stop": ["off", "on"],
    "neighbours": [0, 4],
    "sampling": ["greedy", "seeded"],
}
NO_FIELD = "the API has no field for it"
NO_SEED = "the API has no seed, so its samples cannot be compared"
NO_CHAT = "the prompt is a text: it neither begins a thought nor declares tools"
IMPOSSIBLE: dict[tuple[str, str, Value], str] = {  # of an API: a column and its value
    ("completions", "thinking", "on"): NO_CHAT,
    ("completions", "thinking", "budget"): NO_CHAT,
    ("completions", "tools", "auto"): NO_CHAT,
    ("completions", "tools", "required"): NO_CHAT,
    ("messages", "form", "regex"): NO_FIELD,
    ("messages", "penalties", "on"): NO_FIELD,
    ("messages", "logprobs", "on"): NO_FIELD,
    ("messages", "n", 2): NO_FIELD,
    ("messages", "sampling", "seeded"): NO_SEED,
    ("responses", "thinking", "budget"): NO_FIELD,
    ("responses", "form", "regex"): NO_FIELD,
    ("responses", "penalties", "on"): NO_FIELD,
    ("responses", "logprobs", "on"): NO_FIELD,
    ("responses", "n", 2): NO_FIELD,
    ("responses", "stop", "on"): NO_FIELD,
    ("responses", "sampling", "seeded"): NO_SEED,
}


def impossible() -> frozenset[Pair]:
    return frozenset(pair(Cell("api", api), Cell(name, value)) for api, name, value in IMPOSSIBLE)


ROWS: list[Row] = all_pairs(FACTORS, impossible())

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
    },
)
PILOT = tool(
    "find_pilot", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
)
FORM = {
    "type": "object",
    "properties": {
        "what": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["what", "days"],
    "additionalProperties": False,
}
REGEX = r"[A-Z][a-z]{2,8}( [a-z]{1,8}){3,7}\."
BUDGET = 5  # tokens of a thought
SYSTEM = (
    "The boats of the harbour leave at noon and come back with the tide. Answer in one short sentence, "
    "and do not guess what nobody has told you about boats, tides or the weather."
)
BEFORE = "The tide was high this morning, the boats came late, and nobody had seen the old pilot since noon. "
QUESTIONS = {
    "none": f"{BEFORE}What is NextFit, and what is it good for?",
    "auto": f"{BEFORE}What is the weather in Paris for 3 days?",
}
TEXT = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
MAX_TOKENS = 48


def request(row: Row, stop: str | None) -> dict[str, Any]:
    """The body of a row's request; `stop` for those that have one."""
    asked = QUESTIONS["none" if row["tools"] == "none" else "auto"]
    body = {**_OF_API[row["api"]](row, asked), "temperature": 0}
    if row["sampling"] == "seeded":
        body |= {"temperature": 0.8, "seed": 11, "top_p": 0.95}
    if row["penalties"] == "on":  # three letters take turns for a while, so that every token counts
        bias = {"64": 12, "65": 11.5, "66": 11}
        body |= {
            "frequency_penalty": 2,
            "presence_penalty": 0.5,
            "repetition_penalty": 1.1,
            "logit_bias": bias,
        }
    if row["logprobs"] == "on":
        body |= {"logprobs": 2} if row["api"] == "completions" else {"logprobs": True, "top_logprobs": 2}
    if row["n"] != 1:
        body["n"] = row["n"]
    if row["stop"] == "on" and stop is not None:
        body["stop_sequences" if row["api"] == "messages" else "stop"] = [stop]
    if row["stream"] == "streamed":
        body["stream"] = True
        if row["api"] in ("chat", "completions"):
            body["stream_options"] = {"include_usage": True}
    return body


def unlike(body: dict[str, Any], word: str) -> dict[str, Any]:
    """A request that begins as `body` does and then asks something else, for one token."""
    changed = _asks(body, word * 3)
    for name in ("n", "stream", "stream_options", "logprobs", "top_logprobs"):
        changed.pop(name, None)
    return changed | {_limit(body): 1}


def _asks(body: dict[str, Any], text: str) -> dict[str, Any]:
    if "prompt" in body:
        return body | {"prompt": TEXT.format(system=SYSTEM, asked=text)}
    name = "input" if "input" in body else "messages"
    return body | {name: [*body[name][:-1], {"role": "user", "content": text}]}


def _limit(body: dict[str, Any]) -> str:
    return "max_output_tokens" if "input" in body else "max_tokens"


def _chat(row: Row, asked: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}],
        "max_tokens": MAX_TOKENS,
        "enable_thinking": row["thinking"] != "off",
        **_form(row),
    }
    if row["thinking"] == "budget":
        body["thinking_budget"] = BUDGET
    if row["tools"] != "none":
        body |= {"tools": [WEATHER, PILOT], "tool_choice": row["tools"]}
    return body


def _completions(row: Row, asked: str) -> dict[str, Any]:
    return {"prompt": TEXT.format(system=SYSTEM, asked=asked), "max_tokens": MAX_TOKENS, **_form(row)}


def _form(row: Row) -> dict[str, Any]:
    match row["form"]:
        case "json":
            return {"response_format": schema(FORM)}
        case "regex":
            return {"regex": REGEX}
    return {}


def _messages(row: Row, asked: str) -> dict[str, Any]:
    thinking = {"off": {"type": "disabled"}, "on": {"type": "adaptive"}}
    bounded = {"type": "enabled", "budget_tokens": BUDGET}
    body: dict[str, Any] = {
        "system": SYSTEM,
        "messages": [{"role": "user", "content": asked}],
        "max_tokens": MAX_TOKENS,
        "thinking": thinking.get(str(row["thinking"]), bounded),
    }
    if row["form"] == "json":
        body["output_config"] = {"format": {"type": "json_schema", "schema": FORM}}
    if row["tools"] != "none":
        functions = [t["function"] for t in (WEATHER, PILOT)]
        body["tools"] = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
        body["tool_choice"] = {"type": "any" if row["tools"] == "required" else "auto"}
    return body


def _responses(row: Row, asked: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "instructions": SYSTEM,
        "input": [{"role": "user", "content": asked}],
        "max_output_tokens": MAX_TOKENS,
        "reasoning": {"effort": "none" if row["thinking"] == "off" else "medium"},
    }
    if row["form"] == "json":
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": FORM}}
    if row["tools"] != "none":
        body["tools"] = [{"type": "function", **t["function"]} for t in (WEATHER, PILOT)]
        body["tool_choice"] = row["tools"]
    return body


_OF_API: dict[Value, Any] = {
    "chat": _chat,
    "completions": _completions,
    "messages": _messages,
    "responses": _responses,
}
