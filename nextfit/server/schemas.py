"""Request bodies of the OpenAI routes. Unknown fields are tolerated, wrong types and ranges are refused.

Field meanings are OpenAI's. Those that OpenAI does not have are spelled as in other servers: `top_k`,
`min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `stop_token_ids`, `chat_template_kwargs`, `regex`;
`grammar` and `thinking_budget` are ours.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from nextfit.server.errors import ApiError

MAX_CHOICES = 16
MAX_LOGPROBS = 20
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
# fail_fast: a long list of ids is one error as a list of strings, not one per element
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Bias = Annotated[float, Field(ge=-100, le=100)]
_IDS: JsonDict = {"propertyNames": {"pattern": "^[0-9]+$"}}
NOT_EMPTY: JsonDict = {"minLength": 1, "minItems": 1}  # checked where the refusal is told in fewer words
Prompt = str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class Body(BaseModel):
    # strict: "0.5" is no number and true no integer
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool | None = None


class JsonSchema(Body):
    name: str | None = None
    content: Any = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class SamplingBody(Body):
    """Fields that chat and completions share. None means the checkpoint's default, or the neutral value."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(json_schema_extra=_IDS)] | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    grammar: Annotated[str, Field(min_length=1, max_length=262144)] | None = None
    draft: Annotated[int, Field(ge=0, le=8)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    user: str | None = None

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit()):
                raise ValueError("an object whose keys are token ids")
        return value

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ContentPart(Body):
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One turn; other fields (`name`, `reasoning_content` ...) reach the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None


class ChatRequest(SamplingBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _supported(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
        return self


class CompletionRequest(SamplingBody):
    prompt: Annotated[Prompt, Field(json_schema_extra=NOT_EMPTY)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _supported(self) -> CompletionRequest:
        if self.suffix:
            raise unsupported("suffix", "text after the completion is")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of", "a best_of other than n is")
        if not self.prompt or any(item in ("", []) for item in self.prompt):
            raise ApiError(400, "prompt: is empty, expected at least one token", param="prompt")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One text or list of token ids per completion."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


def unsupported(field: str, what: str) -> ApiError:
    return ApiError(400, f"{field}: {what} not supported by this version", param=field, code="unsupported")
