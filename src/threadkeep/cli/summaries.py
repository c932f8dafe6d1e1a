"""Messages and requests in a few words, whatever classes wrote them. They are read as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from threadkeep.records import Part


def role_of(message: Any) -> str:
    """Who speaks, as far as the message says."""
    if isinstance(message, Mapping):
        for key in ("role", "type", "kind"):
            if isinstance(message.get(key), str):
                return str(message[key])
    return ""


def run_of(message: Any) -> str | None:
    """The run that made the message."""
    run_id = message.get("run_id") if isinstance(message, Mapping) else None
    return run_id if isinstance(run_id, str) else None


def text_of(message: Any) -> str:
    """What the message says; its JSON where that cannot be told."""
    if not isinstance(message, Mapping):
        return message if isinstance(message, str) else _json(message)
    parts = [_part(part) for part in _parts(message)]
    parts += [_part(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    if not any(parts):
        return _json(message)
    text = " ".join(part for part in parts if part)
    tool = message.get("tool_name")
    return f"{tool} → {text}" if isinstance(tool, str) else text


def request_text(request: Any) -> str:
    """What the human is asked."""
    match request.get("payload") if isinstance(request, Mapping) else None:
        case {"prompt": str(prompt)}:
            return prompt
        case {"tool_name": str(tool), "args": args}:
            return f"may {call_text(tool, args)} run?"
        case {"questions": [*questions]} if all(isinstance(question, Mapping) for question in questions):
            return " / ".join(str(question.get("prompt", "")) for question in questions)
        case _:
            return _json(request)


def call_text(name: str, arguments: Any) -> str:
    """A call as it would be written."""
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in arguments.items())})"
    return f"{name}({arguments if isinstance(arguments, str) else _json(arguments)})"


def draft_text(parts: Sequence[Part]) -> str:
    """What has come so far of a message that is not there."""
    said = ""
    for part in parts:
        if part.tool_name is not None:
            said += f" → {call_text(part.tool_name, part.content)} "
        elif isinstance(part.content, str):
            said += part.content  # may end in the middle of a word
        else:
            said += f" {_part(part.content)} "
    return said


def _parts(message: Mapping[str, Any]) -> list[Any]:
    for key in ("content", "parts"):
        match message.get(key):
            case str(text):
                return [text]
            case [*parts]:
                return parts
    return []


def _part(part: Any) -> str:
    match part:
        case str(text) | {"text": str(text)} | {"content": str(text)}:
            return text
        case {"thinking": str(text)}:
            return f"(thinking) {text}"
        case {"name": str(name), "arguments": arguments} | {"name": str(name), "input": arguments}:
            return f"→ {call_text(name, arguments)}"
        case {"function": {"name": str(name), "arguments": arguments}}:
            return f"→ {call_text(name, arguments)}"
        case {"type": "image", **image}:
            return f"[image {image.get('media_type') or ''}]".replace(" ]", "]")
        case _:
            return _json(part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
