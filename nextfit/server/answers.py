"""What the routes answer, for the OpenAPI file. Answers of the model are not checked against it but in tests.

A field without a default is always there.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Object(BaseModel):
    """Has no other fields."""

    model_config = ConfigDict(extra="forbid")


class OpenAIFault(Object):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class OpenAIError(Object):
    error: OpenAIFault


class AnthropicFault(Object):
    type: str
    message: str


class AnthropicError(Object):
    type: Literal["error"]
    error: AnthropicFault
    request_id: str


class Status(Object):
    status: Literal["ok"]


class Unavailable(Object):
    """The error is shaped as those of OpenAI's routes."""

    status: Literal["unavailable"]
    error: OpenAIFault


class Model(Object):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    capabilities: dict[str, bool]


class Models(Object):
    object: Literal["list"]
    data: list[Model]


class ServerInfo(Object):
    version: str
    names: list[str]
    model: dict[str, Any]
    limits: dict[str, Any]
    sampling_defaults: dict[str, Any]
    device: str
    dtype: str


class Route(Object):
    path: str
    methods: list[str]
    open: bool


class OperatorRoute(Object):
    operator: str
    rows: Literal["few", "many", "any"]
    format: str
    route: str
    reason: str
    calls: int


class Routes(Object):
    routes: list[Route]
    operators: list[OperatorRoute]


class Loads(Object):
    timestamp: str
    version: str
    dp_rank_count: int
    loads: list[dict[str, int | float]]
    aggregate: dict[str, int | float]


class Tokens(Object):
    count: int
    max_model_len: int
    tokens: list[int]


class Text(Object):
    prompt: str


class Cached(Object):
    cached_tokens: int


class Reasoned(Object):
    reasoning_tokens: int


class Usage(Object):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached
    completion_tokens_details: Reasoned


class Function(Object):
    name: str
    arguments: str


class Call(Object):
    id: str
    type: Literal["function"]
    function: Function


class ChatReply(Object):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None
    tool_calls: list[Call] = []


class Alternative(Object):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(Object):
    content: list[TokenLogprobs]
    refusal: None


class ChatChoice(Object):
    index: int
    message: ChatReply
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Object):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(Object):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Object):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Object):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class Counted(Object):
    input_tokens: int


class MessageUsage(Counted):
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class ThinkingBlock(Object):
    type: Literal["thinking"]
    thinking: str
    signature: str


class TextBlock(Object):
    type: Literal["text"]
    text: str


class ToolUseBlock(Object):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessagesReply(Object):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "tool_use", "stop_sequence", "max_tokens"]
    stop_sequence: str | None
    usage: MessageUsage


class Response(BaseModel):
    """The fields that the answer decides; those of the request are sent back beside them."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]
