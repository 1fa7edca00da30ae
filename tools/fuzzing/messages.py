"""Changes of what a protobuf message means: of any field, however deep."""

from __future__ import annotations

from typing import Any

from fuzzing.mutations import NUMBERS, TEXTS, Random

_DEEPEST = 8


def changed_model(data: bytes, random: Random) -> bytes:
    """An ONNX model with one to three fields changed."""
    from onnx import ModelProto

    return changed_message(ModelProto.FromString(data), random)


def changed_message(message: Any, random: Random) -> bytes:
    """A message with one to three fields changed."""
    for _ in range(int(random.integers(1, 4))):
        _change(message, random)
    return message.SerializeToString()


def _change(message: Any, random: Random, depth: int = 0) -> None:
    """Go down to a field, and change it there."""
    fields = [field for field, _ in message.ListFields()]
    if not fields:
        return
    field = fields[int(random.integers(len(fields)))]
    value = getattr(message, field.name)
    is_message = field.type == field.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        _change_map(value, field.message_type.fields_by_name["value"], random, depth)
    elif field.is_repeated:
        place = int(random.integers(len(value)))
        if is_message and depth < _DEEPEST and random.random() < 0.8:
            _change(value[place], random, depth + 1)
        else:
            _change_list(value, place, field, random)
    elif is_message and depth < _DEEPEST and random.random() < 0.9:
        _change(value, random, depth + 1)
    elif is_message or random.random() < 0.1:
        message.ClearField(field.name)
    else:
        _put(lambda new: setattr(message, field.name, new), value, field, random)


def _change_map(values: Any, field: Any, random: Random, depth: int) -> None:
    """Change an entry of a map, or take it away, or put it under another key."""
    keys = sorted(values)
    key = keys[int(random.integers(len(keys)))]
    is_message = field.type == field.TYPE_MESSAGE
    kind = random.random()
    if kind < 0.1:
        del values[key]
    elif kind < 0.2 and is_message:
        values[keys[int(random.integers(len(keys)))]].CopyFrom(values[key])
    elif is_message and depth < _DEEPEST:
        _change(values[key], random, depth + 1)
    elif not is_message:
        _put(lambda new: values.__setitem__(key, new), values[key], field, random)


def _change_list(values: Any, place: int, field: Any, random: Random) -> None:
    kind = int(random.integers(4))
    if kind == 0:
        del values[place]
    elif kind == 1 or field.type == field.TYPE_MESSAGE:
        other = int(random.integers(len(values)))
        if field.type == field.TYPE_MESSAGE:
            values[place].CopyFrom(values[other])
        else:
            values.append(values[other])
    else:
        _put(lambda new: values.__setitem__(place, new), values[place], field, random)


def _put(put: Any, now: Any, field: Any, random: Random) -> None:
    """Another value of the field's type; one that it does not hold changes nothing."""
    if isinstance(now, bool | int):
        new: Any = [*NUMBERS[:16], now + 1, now - 1, -now, now * 2][int(random.integers(20))]
    elif isinstance(now, float):
        new = [0.0, -1.0, 1e-30, 3e38, float("inf"), float("nan"), now * 2][int(random.integers(7))]
    elif isinstance(now, bytes):
        new = [b"", now[:-1], now + b"\0", random.bytes(len(now)), b"\xff" * len(now)][int(random.integers(5))]
    else:
        new = TEXTS[int(random.integers(len(TEXTS)))]
    try:
        put(new)
    except (ValueError, TypeError, UnicodeEncodeError):
        return
