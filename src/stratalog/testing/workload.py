"""Whole workloads: families of a trajectory, its children and its branches, spread over tenants, models and days."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from . import words
from .agent import Agent
from .profile import Profile, profile_of
from .script import SECOND_US, Script
from .trajectory import GeneratedTrajectory

END_US = 1_768_435_200_000_000
"""2026-01-15T00:00:00Z, before which everything happens unless the caller says otherwise."""
DAY_US = 86_400 * SECOND_US


def workload(
    seed: int,
    n: int,
    profile: str = "mixed",
    *,
    end: int = END_US,
    days: int = 10,
    tenants: Sequence[str] = words.TENANTS,
) -> Iterator[GeneratedTrajectory]:
    """`n` trajectories, the same for the same arguments; a parent comes before its children and branches.

    They start within `days` days, and have ended or stopped by `end` (µs since 1970); the last day has no starts.
    Profiles: `mixed`, `small`, `bulky` (outputs of over 32 KiB and one of over 1 MiB in each), `long` (1,000 events
    and more), `running` (no end). Raises `Invalid` for another name.
    """
    chosen = profile_of(profile)
    made = family = 0
    while made < n:
        source = random.Random(f"{seed}/{profile}/{family}")
        start_us = end - DAY_US - int(source.random() * days * DAY_US)
        tenant = tenants[int(source.random() * len(tenants))]
        for script in _family(source, chosen, tenant, start_us, end, n - made):
            yield script.trajectory()
            made += 1
        family += 1


def _family(
    source: random.Random, profile: Profile, tenant: str, start_us: int, end_us: int, limit: int
) -> list[Script]:
    """One trajectory, with a child or a branch where there is room for them."""
    script = Script(source, profile, tenant, start_us, end_us)
    agent = Agent(script, words.MODELS[int(source.random() * len(words.MODELS))])
    family = [script]
    agent.start()
    agent.work()
    if not profile.ends:
        agent.stand_still()
        return family
    if len(family) < limit and source.random() < profile.child_share:
        family.append(_child(agent))
    branch_at = script.next_number - 1
    agent.end()
    if len(family) < limit and source.random() < profile.fork_share:
        family.append(_branch(agent, branch_at))
    return family


def _child(parent: Agent) -> Script:
    planned, number = parent.delegate()
    script = _beside(parent.script)
    child = Agent(script, words.MODELS[1])
    child.start(parent.script.trajectory_id, number)
    parent.child_started(planned, script.trajectory_id, child.task)
    child.work()
    status, result = child.end()
    parent.child_finished(planned, script, status, result)
    return script


def _branch(parent: Agent, branch_at: int) -> Script:
    script = _beside(parent.script)
    branch = Agent(script, parent.model)
    branch.start(parent.script.trajectory_id, branch_at)
    branch.fork(parent.script.trajectory_id, branch_at)
    branch.work()
    branch.end()
    return script


def _beside(script: Script) -> Script:
    return Script(script.phrases.random, script.profile, script.tenant, script.now, script.end_us)
