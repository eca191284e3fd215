"""Which dialect each path speaks."""

from serving.api.dialect import Dialects
from serving.api.dialects.chat import ChatDialect
from serving.api.dialects.responses.dialect import ResponsesDialect

CHAT = ChatDialect()
RESPONSES = ResponsesDialect()
DIALECTS = Dialects({"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES}, default=CHAT)
