"""POST /tokenize and /detokenize: what a text or a conversation is to the model, in the shape that vLLM gave them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Discriminator, Tag

from nextfit.server.answers import Text, Tokens
from nextfit.server.conversation import converse
from nextfit.server.errors import ApiError
from nextfit.server.openapi import of_body
from nextfit.server.sampling import check_model
from nextfit.server.schemas import Body, ChatRequest, TokenIds
from nextfit.server.service import Service


class TextRequest(Body):
    model: str | None = None
    prompt: str


class TokensRequest(Body):
    model: str | None = None
    tokens: TokenIds


def _kind(body: Any) -> str:
    return "a conversation" if isinstance(body, dict) and "messages" in body else "a text"


TokenizeRequest = Annotated[
    Annotated[TextRequest, Tag("a text")] | Annotated[ChatRequest, Tag("a conversation")],
    Discriminator(_kind),
]


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", response_model=Tokens, responses=of_body())
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        served = service.served()
        check_model(body.model, served)
        if isinstance(body, ChatRequest):
            ids = (await asyncio.to_thread(converse, body, served)).ids
        else:
            ids = await asyncio.to_thread(served.tokenizer.encode, body.prompt)
        return {"count": len(ids), "max_model_len": served.context, "tokens": ids}

    @routes.post("/detokenize", response_model=Text, responses=of_body())
    async def detokenize(body: TokensRequest) -> dict[str, str]:
        """Special tokens are spelled; bytes that are no whole character at the end are left out."""
        served = service.served()
        check_model(body.model, served)
        count = served.tokenizer.vocab_size
        wrong = next((i for i, id in enumerate(body.tokens) if id >= count), None)
        if wrong is not None:
            message = f"tokens[{wrong}]: {body.tokens[wrong]} is not below the vocabulary's size, {count}"
            raise ApiError(400, message, param=f"tokens[{wrong}]", code="invalid_value")
        return {"prompt": await asyncio.to_thread(served.tokenizer.decode, body.tokens, skip_special=False)}

    return routes
