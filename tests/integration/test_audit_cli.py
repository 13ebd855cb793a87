"""`stratalog audit` and `stratalog key` as people call them: help, documents, exit codes, text that cannot act."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pytest
from fix_audit import Audit
from fix_cli import Cli, call

from stratalog.cli.audit import audit_app
from stratalog.cli.keys import key_app

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
COMMANDS = [
    f"{name} {command}"
    for name, app in (("audit", audit_app), ("key", key_app))
    for command in app
    if command[0] != "-"
]


@pytest.fixture
def audited(audit: Audit) -> Cli:
    """A home with two trajectories in the warm tier, sealed."""
    audit.bench.task(1)
    audit.bench.task(2)
    made = Cli(audit.home.path)
    (sealed,) = made.json("audit", "seal")
    assert (sealed["tenant"], sealed["leaves"], sealed["published"]) == ("acme", 2, True)
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_common_options(command: str) -> None:
    said = call(*command.split(), "--help")
    assert said.code == 0 and said.err == ""
    assert f"Example: stratalog {command}" in " ".join(said.out.split())
    assert all(option in said.out for option in ("--home", "STRATALOG_HOME", "--json", "--dsn"))


def test_seal_and_verify(audited: Cli, audit: Audit) -> None:
    (again,) = audited.json("audit", "seal")
    assert (again["leaves"], again["published"]) == (0, False)
    assert "nothing has moved" in audited("audit", "seal").err
    found = audited.json("audit", "verify")
    assert list(found) == ["ok", "warm", "tenants"] and found["ok"] is True
    (tenant,) = found["tenants"]
    assert (tenant["leaves"], tenant["heads_in_file"], tenant["heads_in_storage"], tenant["unsealed"]) == (2, 1, 1, 0)
    assert audited("audit", "verify", "--tenant", "acme").out.splitlines()[-1] == "verified"
    audit.bench.execute("UPDATE audit_leaves SET event_hash = sha256('x') WHERE leaf_index = 0")
    damaged = audited.json("audit", "verify", code=20)
    assert damaged["ok"] is False and damaged["tenants"][0]["problems"]
    spoken = audited("audit", "verify")
    assert spoken.code == 20 and spoken.out.splitlines()[-1] == "DAMAGE FOUND"
    assert audited.error("audit", "seal", code=20)["hint"].endswith("stratalog audit verify")


def test_a_tenant_that_is_none_is_refused(audited: Cli) -> None:
    assert audited.error("audit", "seal", "--tenant", "../x", code=1)["code"] == "invalid"
    assert audited.error("audit", "verify", "--tenant", "../x", code=1)["code"] == "invalid"
    assert audited.json("audit", "seal", "--tenant", "nobody") == []


def test_keys(audited: Cli, tmp_path: Path) -> None:
    (first,) = audited.json("key", "list")
    second = audited.json("key", "rotate")
    assert second["previous"] == first["key_id"] and second["endorsement"]
    spoken = audited("key", "list").out
    assert first["key_id"][:16] in spoken and "retired" in spoken and "signs" in spoken
    assert audited.json("key", "export") == [first, second] == json.loads(audited("key", "export").out)
    assert audited.json("key", "export", "--output", tmp_path / "keys.json")["keys"] == 2
    assert json.loads((tmp_path / "keys.json").read_bytes()) == [first, second]
    assert audited("key", "export", "--output", tmp_path / "keys.json").code == 1
    third = re.match("[0-9a-f]{64}", audited("key", "rotate").out)
    assert third and audited.json("key", "list")[-1]["key_id"] == third[0]
    private = [path.read_bytes().hex() for path in (audited.home / "keys" / "audit").glob("*.private")]
    assert len(private) == 1 and private[0] not in audited("key", "export").out


def test_prove(audited: Cli, audit: Audit) -> None:
    id_ = str(audit.bench.author(1).trajectory_id)
    proof = json.loads(audited("audit", "prove", id_).out)
    assert proof == audited.json("audit", "prove", id_)
    assert list(proof) == [
        "tenant", "trajectory_id", "sequence_number", "event_hash", "leaf_index", "path", "head"
    ]  # fmt: skip
    assert "audit seal" in audited.error("audit", "prove", str(uuid.uuid4()), code=1)["hint"]


def test_bundle_and_check(audited: Cli, audit: Audit, tmp_path: Path) -> None:
    ids = [str(audit.bench.author(number).trajectory_id) for number in (1, 2)]
    made = audited.json("audit", "bundle", *ids, "--output", tmp_path / "b.zip")
    assert made["ok"] and [found["trajectory_id"] for found in made["trajectories"]] == ids
    checked = call("audit", "check", tmp_path / "b.zip", "--json")
    assert checked.code == 0 and {"file": str(tmp_path / "b.zip"), **checked.document} == made
    assert call("audit", "check", tmp_path / "b.zip").out.splitlines()[-1] == "verified"
    assert call("audit", "check", tmp_path / "b.zip", "--trust", made["first_key"]).code == 0
    distrusted = call("audit", "check", tmp_path / "b.zip", "--trust", "00")
    assert distrusted.code == 20 and "not the trusted one" in distrusted.out
    data = bytearray((tmp_path / "b.zip").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.zip").write_bytes(data)
    assert call("audit", "check", tmp_path / "bad.zip").code == 20
    assert audited.error("audit", "check", tmp_path / "none.zip", code=1)["code"] == "not_found"
    assert (
        "exists already" in audited.error("audit", "bundle", ids[0], "--output", tmp_path / "b.zip", code=1)["message"]
    )
    assert audited.error("audit", "bundle", "--output", tmp_path / "c.zip", code=2)["code"] == "usage"
    assert "confidential" in audited("audit", "bundle", ids[0], "--output", tmp_path / "d.zip").out
