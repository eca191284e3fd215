"""Which dialect each path speaks."""

from serving.api.dialect import Dialects
from serving.api.dialects.chat import ChatDialect

CHAT = ChatDialect()
DIALECTS = Dialects({"/v1/chat/completions": CHAT}, default=CHAT)
