"""Dialects by path."""

from serving.api.dialect import Dialects
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.dialects.completions import CompletionsDialect
from serving.api.dialects.embeddings import EmbeddingsDialect
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.dialects.responses.dialect import ResponsesDialect

CHAT = ChatDialect()
DIALECTS = Dialects(
    {
        "/v1/chat/completions": CHAT,
        "/v1/messages": MessagesDialect(),
        "/v1/responses": ResponsesDialect(),
        "/v1/completions": CompletionsDialect(),
        "/v1/embeddings": EmbeddingsDialect(),
    },
    default=CHAT,
)
