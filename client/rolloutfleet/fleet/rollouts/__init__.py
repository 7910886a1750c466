"""Agents run on tasks, their sessions exported as episodes: what `Fleet.rollout` is made of (docs/trainer.md)."""

from rolloutfleet.fleet.rollouts.agents import AgentError as AgentError
from rolloutfleet.fleet.rollouts.agents import Command as Command
from rolloutfleet.fleet.rollouts.agents import NotStarted as NotStarted
from rolloutfleet.fleet.rollouts.episodes import Episode as Episode
from rolloutfleet.fleet.rollouts.episodes import EpisodeGroup as EpisodeGroup
from rolloutfleet.fleet.rollouts.rollout import AsyncRollout as AsyncRollout
from rolloutfleet.fleet.rollouts.rollout import TooManyFailures as TooManyFailures
