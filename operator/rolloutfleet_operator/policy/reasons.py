"""Every name that the operator publishes: reasons of conditions and problems, of Events, and metrics.

docs/runbook.md has an entry for each; a test compares the two.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ConditionReason(StrEnum):
    """Why a condition is as it is. All is as it should be, or on the way."""

    SERVING = "Serving"
    ALL_READY = "AllReady"
    NONE_WANTED = "NoneWanted"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    RESTARTING = "Restarting"
    RETIRING = "Retiring"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    AS_ASKED_FOR = "AsAskedFor"
    UPDATE_WAITS = "UpdateWaits"
    UP_TO_DATE = "UpToDate"
    VOLUMES_GROW = "VolumesGrow"
    WITHIN_BUDGET = "WithinBudget"
    NOT_SAMPLED = "NotSampled"
    IN_FORCE = "InForce"
    SETTINGS_PENDING = "SettingsPending"
    DUMPING = "Dumping"
    DUMPS_OFF = "DumpsOff"
    ON_CLAIMS = "OnClaims"
    EPHEMERAL_STORAGE = "EphemeralStorage"
    DUMPS_ON_POD = "DumpsOnPod"
    NOT_STALLED = "NotStalled"
    NOT_PAUSED = "NotPaused"
    PAUSED_BY_TRAINER = "PausedByTrainer"
    NOT_KNOWN = "NotKnown"
    PROXIES_NOT_READY = "ProxiesNotReady"
    GATEWAY_NOT_READY = "GatewayNotReady"
    NO_ENGINES = "NoEngines"
    ENGINES_NOT_READY = "EnginesNotReady"


class ProblemReason(StrEnum):
    """What is wrong, the worst first: the order here is that of `status.problems`."""

    SPEC_INVALID = "SpecInvalid"
    PASS_FAILED = "PassFailed"
    TEMPLATE_INVALID = "TemplateInvalid"
    SETTINGS_INVALID = "SettingsInvalid"
    PERMISSION_DENIED = "PermissionDenied"
    NAME_TAKEN = "NameTaken"
    CHILD_REFUSED = "ChildRefused"
    KEYS_MISSING = "KeysMissing"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    STORAGE_CLASS_MISSING = "StorageClassMissing"
    CLAIM_PENDING = "ClaimPending"
    STORE_OF_ANOTHER_FLEET = "StoreOfAnotherFleet"
    STORE_UNUSABLE = "StoreUnusable"
    STORE_DAMAGED = "StoreDamaged"
    TOKENIZER_UNREACHABLE = "TokenizerUnreachable"
    ROLL_STOPPED = "RollStopped"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    CRASH_LOOPING = "CrashLooping"
    NODE_LOST = "NodeLost"
    STUCK_TERMINATING = "StuckTerminating"
    WAITING_FOR_GPUS = "WaitingForGpus"
    UNSCHEDULABLE = "Unschedulable"
    UNRESPONSIVE = "Unresponsive"
    NOT_READY_IN_TIME = "NotReadyInTime"
    UNDUMPED_TURNS = "UndumpedTurns"
    VOLUME_FULL = "VolumeFull"
    STORE_LOST = "StoreLost"
    OOM_KILLED = "OOMKilled"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    DUMP_FAILING = "DumpFailing"
    RESTART_STUCK = "RestartStuck"
    DRAINED_BY_HAND = "DrainedByHand"
    NODE_CORDONED = "NodeCordoned"
    KEY_NOT_TAKEN = "KeyNotTaken"
    STATS_UNKNOWN = "StatsUnknown"
    SETTINGS_REFUSED = "SettingsRefused"
    NEEDS_RESTART = "NeedsRestart"
    PAUSE_TOO_LONG = "PauseTooLong"
    STORAGE_CANT_GROW = "StorageCantGrow"
    FIELDS_LOST = "FieldsLost"
    OVER_BUDGET = "OverBudget"
    FIELDS_UNKNOWN = "FieldsUnknown"
    CHILD_FOUGHT_OVER = "ChildFoughtOver"
    TWO_OPERATORS = "TwoOperators"


MAY_STAY_READY: Final = frozenset(
    (
        ProblemReason.STUCK_TERMINATING,
        ProblemReason.UNDUMPED_TURNS,
        ProblemReason.STORE_LOST,
        ProblemReason.OOM_KILLED,
        ProblemReason.BUDGET_TOO_SMALL,
        ProblemReason.DUMP_FAILING,
        ProblemReason.RESTART_STUCK,
        ProblemReason.DRAINED_BY_HAND,
        ProblemReason.NODE_CORDONED,
        ProblemReason.STATS_UNKNOWN,
        ProblemReason.PAUSE_TOO_LONG,
        ProblemReason.OVER_BUDGET,
        ProblemReason.FIELDS_UNKNOWN,
        ProblemReason.TWO_OPERATORS,
    )
)
"""Problems of a fleet all parts of which may nevertheless be ready, and as the spec requires. With any other it is not
Ready. Most have a condition of their own, and a pod that is not ready makes the fleet unready whatever is wrong."""


NEEDS_SOMEBODY: Final = frozenset(
    (
        ProblemReason.SPEC_INVALID,
        ProblemReason.PASS_FAILED,
        ProblemReason.TEMPLATE_INVALID,
        ProblemReason.SETTINGS_INVALID,
        ProblemReason.PERMISSION_DENIED,
        ProblemReason.NAME_TAKEN,
        ProblemReason.CHILD_REFUSED,
        ProblemReason.KEYS_MISSING,
        ProblemReason.STORAGE_CLASS_MISSING,
        ProblemReason.STORE_OF_ANOTHER_FLEET,
        ProblemReason.STORE_UNUSABLE,
        ProblemReason.STORE_DAMAGED,
        ProblemReason.CONTAINER_CONFIG_ERROR,
        ProblemReason.BUDGET_TOO_SMALL,
        ProblemReason.SETTINGS_REFUSED,
        ProblemReason.NEEDS_RESTART,
        ProblemReason.STORAGE_CANT_GROW,
        ProblemReason.FIELDS_LOST,
    )
)
"""What time alone won't mend. Not a quota, a node, a GPU, an image or a network: those come back by themselves."""


class EventReason(StrEnum):
    """Reasons of Events: what the operator does, step by step."""

    DRAIN_ASKED = "DrainAsked"
    WARMING = "Warming"
    QUIESCING = "Quiescing"
    EMPTYING = "Emptying"
    EVICTING = "Evicting"
    ENDING = "Ending"
    BOOTING = "Booting"
    RESTARTED = "Restarted"
    WITHDRAWN = "RestartWithdrawn"
    CRASHED = "Crashed"
    UPDATING = "Updating"
    PARKED = "Parked"
    UNPARKED = "Unparked"
    PROBLEM_GONE = "ProblemGone"


class CurrentAction(StrEnum):
    """`status.current.action` where no proxy is restarted; else it is the cause's."""

    SCALE_DOWN = "ScaleDown"
    SUSPEND = "Suspend"
    GATEWAY_UPDATE = "GatewayUpdate"
    ENGINE_UPDATE = "EngineUpdate"


class Metric(StrEnum):
    """Names of the operator's Prometheus metrics."""

    PASS_SECONDS = "rolloutfleet_operator_pass_seconds"
    PASS_ERRORS = "rolloutfleet_operator_pass_errors_total"
    LEADING = "rolloutfleet_operator_leading"
    FLEETS = "rolloutfleet_operator_fleets"
    RESTARTS = "rolloutfleet_operator_restarts_total"
    PROBLEMS = "rolloutfleet_operator_problems"
    SLOTS_HELD = "rolloutfleet_operator_slots_held"
    STORES_LOST = "rolloutfleet_operator_stores_lost_total"
    PROXY_RSS = "rolloutfleet_operator_proxy_rss_bytes"
    PROXY_BUDGET = "rolloutfleet_operator_proxy_rss_budget_bytes"
    POLLS_FAILED = "rolloutfleet_operator_polls_failed_total"


_SEVERITY: Final = {reason: place for place, reason in enumerate(ProblemReason)}
"""The worst is 0."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, of one pod or of the fleet as a whole. The message is for people."""

    reason: ProblemReason
    message: str
    pod: str | None = None


def severity(problem: Problem) -> tuple[int, str, str]:
    """Sorts problems; the worst comes first."""
    return _SEVERITY[problem.reason], problem.pod or "", problem.message
