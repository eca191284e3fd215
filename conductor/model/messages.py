"""A conversation: messages of words and pictures."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """Words in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message: an `https:` address, or a `data:` address that holds it in base64."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


Part = Text | Image


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `system` stands for OpenAI's `system` and `developer` alike."""

    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """A message of words only."""
        return cls(role, (Text(text),))

    @property
    def text(self) -> str:
        """The words, pictures left out."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def has_image(self) -> bool:
        """Whether a picture is in it."""
        return any(isinstance(part, Image) for part in self.parts)
