"""`stratalog subject`: whom trajectories are about, so that everything about a person can be erased."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cyclopts import App

from stratalog.hot.home import Home
from stratalog.schemas import subjects
from stratalog.schemas.errors import Invalid
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import counted

if TYPE_CHECKING:
    from stratalog.warm.erasure import Subject

subject_app = App(name="subject", help="Whom trajectories are about, as keyed hashes: add, find.")


def subject_of(home: Home, tenant: str, name: str) -> Subject:
    """A person as the database knows it: hashed with the key of this home."""
    from stratalog.warm.erasure import Subject

    key = home.subject_key()
    return Subject(tenant, subjects.subject_hash(key, tenant, name), subjects.key_id(key))


@subject_app.command
def add(
    subject: str,
    /,
    *,
    trajectory: list[uuid.UUID] | None = None,
    tenant: str | None = None,
    common: Common = DEFAULT,
) -> int:
    """Note that trajectories are about a person. Only a keyed hash is kept; the key is keys/subject.key of the home.

    Example: `stratalog subject add bob@example.org --trajectory 01990000-0000-7000-8000-000000000000`

    Parameters
    ----------
    subject
        Whatever you call the person everywhere: an address, a customer number. It is taken letter by letter.
    trajectory
        A trajectory about it; repeat it for several.
    tenant
        Whose trajectories; the setting `tenant` by default.
    """
    require("psycopg", "warm")
    from stratalog.warm import erasure

    if not trajectory:
        raise Invalid("there is no trajectory to note", hint="add: --trajectory ID")
    installation = common.installation()
    about = subject_of(installation.home, tenant or installation.settings.tenant, subject)
    with installation.connection() as conn:
        added = erasure.add_subject(conn, about, trajectory)
    if common.json:
        common.output.document({"added": added, "given": len(trajectory)})
        return 0
    common.output.line(f"{counted(added, 'trajectory')} noted")
    if added < len(trajectory):
        common.output.note(
            f"{len(trajectory) - added} left out: noted before, erased, of another tenant, or not known here"
        )
    return 0


@subject_app.command
def find(subject: str, /, *, tenant: str | None = None, common: Common = DEFAULT) -> int:
    """List the trajectories that are about a person.

    Example: `stratalog subject find bob@example.org`

    Parameters
    ----------
    subject
        The person, written as it was added.
    tenant
        Whose trajectories; the setting `tenant` by default.
    """
    require("psycopg", "warm")
    from stratalog.warm import erasure

    installation = common.installation()
    about = subject_of(installation.home, tenant or installation.settings.tenant, subject)
    with installation.connection() as conn:
        found = erasure.about(conn, about)
    if common.json:
        common.output.document([str(id_) for id_ in found])
        return 0
    for id_ in found:
        common.output.line(str(id_))
    common.output.note(counted(len(found), "trajectory"))
    return 0


@subject_app.command
def label(*subject: str, tenant: str | None = None, common: Common = DEFAULT) -> int:
    """Print the value of the label `subjects` with which an agent says at the start whom its trajectory is about.

    Example: `stratalog subject label bob@example.org`

    Parameters
    ----------
    subject
        The persons.
    tenant
        Whose trajectory; the setting `tenant` by default.
    """
    if not subject:
        raise Invalid("there is nobody to name", hint="write: stratalog subject label bob@example.org")
    installation = common.installation(create=True)
    labels = installation.home.subject_labels(tenant or installation.settings.tenant, *subject)
    if common.json:
        common.output.document(labels)
    else:
        common.output.line(labels[subjects.LABEL])
    return 0
