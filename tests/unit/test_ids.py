"""Identifiers: time in the UUID, the same import meets the same id, names that cannot leave their folder."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas import ids
from stratalog.schemas.errors import Invalid


@given(st.integers(0, ((1 << 48) - 1) * 1000 + 999), st.binary(min_size=10, max_size=16))
def test_a_uuid7_carries_its_start(started_at: int, entropy: bytes) -> None:
    identity = ids.uuid7_at(started_at, entropy)
    assert (identity.version, identity.variant) == (7, uuid.RFC_4122)
    assert ids.uuid7_time_us(identity) == started_at // 1000 * 1000


@given(st.integers(), st.binary(max_size=20))
def test_times_that_do_not_fit_are_clamped(started_at: int, entropy: bytes) -> None:
    assert ids.uuid7_at(started_at, entropy).version == 7


def test_golden_uuid7() -> None:
    assert str(ids.uuid7_at(1_768_262_400_123_456, bytes(range(10)))) == "019bb4a6-f87b-7001-8203-040506070809"


def test_uuid7s_sort_by_start() -> None:
    made = [ids.uuid7_at(second * 1_000_000, b"\xff" * 10) for second in range(5)]
    assert sorted(made) == made


def test_new_ids_differ() -> None:
    made = {ids.new_trajectory_id() for _ in range(100)}
    assert len(made) == 100
    assert all(identity.version == 7 for identity in made)
    assert ids.new_log_id().version == 4


def imported(**changes: object) -> uuid.UUID:
    values = {"started_at_us": 5_000_000, "tenant": "acme", "format_name": "atif", "run_id": "r", "agent_id": "a"}
    return ids.imported_trajectory_id(**(values | {"first_record": b"d"} | changes))  # type: ignore[arg-type]


def test_an_import_meets_its_id_again() -> None:
    assert imported() == imported() == uuid.UUID("00000000-1388-7fb6-af74-707ba83d7a10")
    changes = [{"tenant": "b"}, {"format_name": "x"}, {"run_id": ""}, {"agent_id": ""}, {"first_record": b"e"}]
    assert len({imported(), *(imported(**change) for change in changes)}) == 6


def test_fields_of_an_import_do_not_run_together() -> None:
    assert imported(run_id="ab", agent_id="c") != imported(run_id="a", agent_id="bc")


def test_an_import_may_be_named_by_lone_surrogates() -> None:
    assert imported(run_id="\ud800").version == 7


def test_imported_secrets() -> None:
    one, other = imported(), imported(run_id="x")
    secret = ids.imported_secret(b"k" * 32, one)
    assert len(secret) == 32
    assert secret == ids.imported_secret(b"k" * 32, one)
    assert secret not in (ids.imported_secret(b"l" * 32, one), ids.imported_secret(b"k" * 32, other))


@pytest.mark.parametrize("tenant", ["a", "0", "default", "a-b_c", "x" * 63])
def test_tenant_names(tenant: str) -> None:
    assert ids.check_tenant(tenant) == tenant


@pytest.mark.parametrize(
    "tenant", ["", "A", "../x", "a/b", "a.b", "-a", "_a", "x" * 64, "a\n", "a\0", "é", "a b", ".", "\u0661"]
)
def test_names_that_are_no_tenants(tenant: str) -> None:
    with pytest.raises(Invalid) as raised:
        ids.check_tenant(tenant)
    assert "1 to 63" in raised.value.hint


@given(st.text() | st.text("abc./-\0 ", max_size=80))
def test_a_model_makes_one_safe_folder(model: str) -> None:
    slug = ids.model_slug(model)
    assert 1 <= len(slug) <= 64
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert not slug.startswith((".", "-"))
    assert ids.model_slug(model) == slug


@given(st.lists(st.text("aA./-u", max_size=6), unique=True, max_size=10))
def test_different_models_have_different_folders(models: list[str]) -> None:
    assert len({ids.model_slug(model) for model in models}) == len(models)


def test_model_folders() -> None:
    assert ids.model_slug("") == "unknown"
    assert ids.model_slug("unknown") != "unknown"
    assert ids.model_slug("atlas-2.1") == "atlas-2.1"
    assert ids.model_slug("a/b").startswith("a-b-")
    assert ids.model_slug("..").startswith("model-")


@given(st.datetimes(min_value=dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC)))
def test_times_survive(moment: dt.datetime) -> None:
    assert ids.from_us(ids.to_us(moment)) == moment


@given(st.integers())
def test_any_number_is_a_time(microseconds: int) -> None:
    assert ids.from_us(microseconds).tzinfo is dt.UTC
