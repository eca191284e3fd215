"""JSON encoding for every value that a record may hold. An unusual value must not make a whole list or stream
fail.
"""

from typing import Any, cast

import orjson

from conductor.model.characters import whole

INT_BITS = 64


def dumps(value: Any) -> bytes:
    """Encode `value` as JSON. Values without a JSON or UTF-8 form (integers beyond 64 bits, lone surrogates,
    unknown types) become the closest text.
    """
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):  # orjson's errors are both
        return orjson.dumps(_plain(value))


def _plain(value: object) -> object:
    match value:
        case None | bool() | float():
            return value
        case int():
            return value if value.bit_length() < INT_BITS else f"a number of {value.bit_length()} bits"
        case dict():
            items = cast(dict[object, object], value).items()
            return {str(_plain(name)): _plain(each) for name, each in items}
        case list() | tuple():
            return [_plain(each) for each in cast(list[object], value)]
        case _:
            return whole(str(value))
