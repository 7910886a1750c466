"""Rows of an export in the forms that trainers take: one module a trainer, each a function or two.

A rollout is one session: the sequence of its trajectories, in any order; `by_session` makes rollouts of an export. The
trainer's own package is imported by the function that makes its objects, and needed by nothing else.
docs/trainers.md shows each in use.
"""

from rolloutfleet.formats.cut import Cut as Cut
from rolloutfleet.formats.cut import cut as cut
from rolloutfleet.formats.rollouts import LeftOut as LeftOut
from rolloutfleet.formats.rollouts import Rollout as Rollout
from rolloutfleet.formats.rollouts import by_session as by_session
from rolloutfleet.formats.rollouts import episode_reward as episode_reward
from rolloutfleet.formats.rollouts import rows_of as rows_of
