"""Bodies as others write them: every way to spell JSON, and things that are none."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from stratalog.schemas import events as ev

# JSON as others write it: every way to spell a string or a number, and things that are no JSON at all.
_characters = st.one_of(
    st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]),
    st.sampled_from(["\\n", "\\/", "\\u00e9", "\\ud800", "\\udc00\\ud83d", "\\u0000", '\\"', "\\\\", "\\ud83d\\ude00"]),
)
_strings = st.lists(_characters, max_size=6).map(lambda parts: '"' + "".join(parts) + '"')
_numbers = st.sampled_from(
    [
        "0",
        "-0",
        "-0.0",
        "1",
        "1.0",
        "1e400",
        "-1e400",
        "1E5",
        "1e-7",
        "0.1",
        "12.50",
        "9223372036854775807",
        "9223372036854775808",
        "1e22",
        "5e-324",
        "NaN",
        "01",
        "123456789012345678901234567890",
        "100000000000000000000.0",
        "3.0000000000000004",
    ]
)
_reference = st.just('{"$blob":{"sha256":"' + "a" * 64 + '","bytes":5,"media_type":"text/plain","preview":""}}')
_space = st.sampled_from(["", "", "", "", " ", "\n"])
_leaves = st.one_of(_strings, _numbers, st.sampled_from(["null", "true", "false", "[]", "{}"]), _reference)


def _object(pairs: list[tuple[str, str, str]]) -> str:
    return "{" + ",".join(f"{space}{key}:{value}" for key, value, space in pairs) + "}"


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(_strings, inner, _space), max_size=3).map(_object),
        st.lists(inner, max_size=2).map(lambda items: "[" + ",".join(f'{{"text":{item}}}' for item in items) + "]"),
    )


_json = st.recursive(_leaves, _containers, max_leaves=8)


@st.composite
def odd_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A kind, and a body of it that may be spelled in any way, or be no JSON at all."""
    kind = draw(st.sampled_from(sorted(ev.KINDS)))
    names = [f'"{field.encode_name}"' for field in msgspec.structs.fields(ev.KINDS[kind])]
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if draw(st.booleans()) else names
    if draw(st.booleans()):
        chosen = sorted(chosen, key=names.index)
    if draw(st.integers(0, 3)) == 0:
        chosen = [*chosen, draw(_strings), *draw(st.lists(st.sampled_from(names), max_size=1))]
    space = _space if draw(st.integers(0, 4)) == 0 else st.just("")
    return kind, _object([(name, draw(_json), draw(space)) for name in chosen]).encode("utf-8", "surrogatepass")
