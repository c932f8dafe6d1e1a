"""The messages and human-in-the-loop requests Threadkeep stores when a host brings no classes of its own.

Fields it does not know are kept, so that a row written by a newer release loses nothing by being read here.
Free-form fields are typed `Any` on purpose: what they may hold is decided in one place, `json_values`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    # Older pydantic would warn that `model_id` begins like methods of its own.
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class TextContent(_Model):
    """Text that somebody said."""

    type: Literal["text"] = "text"
    text: str = ""


class ImageContent(_Model):
    """An image: a URL or base64 data, with its media type."""

    type: Literal["image"] = "image"
    source: str = ""
    media_type: str = ""


class ThinkingContent(_Model):
    """What the model thought on its way to an answer."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""


class ToolCall(_Model):
    """The model asks for a tool to be run."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Any]


Content = Annotated[TextContent | ImageContent, Field(discriminator="type")]
AssistantContent = Annotated[TextContent | ImageContent | ThinkingContent | ToolCall, Field(discriminator="type")]


class Usage(_Model):
    """Tokens that one answer took."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class UserMessage(_Model):
    """What the user said."""

    role: Literal["user"] = "user"
    content: list[Content]
    timestamp: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    run_id: str | None = None
    message_id: str | None = None


class AssistantMessage(_Model):
    """What the model answered."""

    role: Literal["assistant"] = "assistant"
    content: list[AssistantContent]
    stop_reason: str = "stop"
    error_message: str | None = None
    usage: Usage | None = None
    timestamp: float | None = None
    provider_id: str = ""
    model_id: str = ""
    response_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    run_id: str | None = None
    message_id: str | None = None


class ToolResultMessage(_Model):
    """What a tool gave back."""

    role: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    tool_name: str
    content: list[Content]
    details: Any = None
    is_error: bool = False
    timestamp: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    run_id: str | None = None
    message_id: str | None = None


Message = Annotated[UserMessage | AssistantMessage | ToolResultMessage, Field(discriminator="role")]


class Option(_Model):
    """One answer a human may pick."""

    label: str
    value: str
    description: str | None = None
    allow_input: bool = False


class Question(_Model):
    """One question of an ask request."""

    key: str
    prompt: str
    options: list[Option] | None = None
    multi_select: bool = False
    required: bool = True


class ConfirmRequest(_Model):
    """Go on, yes or no?"""

    kind: Literal["confirm"] = "confirm"
    prompt: str
    details: dict[str, Any] | None = None


class ApproveRequest(_Model):
    """May this tool run with these arguments?"""

    kind: Literal["approve"] = "approve"
    tool_name: str
    tool_call_id: str
    args: dict[str, Any]
    details: dict[str, Any] | None = None


class AskRequest(_Model):
    """Questions for the human to answer."""

    kind: Literal["ask"] = "ask"
    questions: list[Question]


HitlPayload = Annotated[ConfirmRequest | ApproveRequest | AskRequest, Field(discriminator="kind")]


class HitlRequest(_Model):
    """The human-in-the-loop question that a run waits on."""

    question_id: str
    thread_id: str | None = None
    payload: HitlPayload
    created_at: float
    timeout_seconds: float | None = None
