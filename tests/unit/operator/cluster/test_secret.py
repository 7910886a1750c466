"""Admin keys: made once, rotated so that nobody is ever called with a key that it has not read."""

import base64

from tests.unit.operator.cluster.fleets import fleet_of

from rolloutfleet_operator.cluster.children import secret
from rolloutfleet_operator.cluster.children.secret import Keys, wanted
from rolloutfleet_operator.policy.observed import seconds_of

NOW = seconds_of("2026-11-21T18:00:00Z")
PLAIN = fleet_of()
ROTATING = fleet_of(auth={"rotate": {"id": "two"}, "overlap": "10m"})


def test_a_key_is_made_where_there_is_none_and_kept_where_there_is() -> None:
    assert wanted(PLAIN, None, taken=False, now=NOW, fresh="f").keys == ("f",)
    there = Keys(keys=("a",))
    assert wanted(PLAIN, there, taken=True, now=NOW, fresh="f") == there


def test_a_new_id_rotates_in_steps() -> None:
    adding = wanted(ROTATING, Keys(keys=("a",)), taken=True, now=NOW, fresh="b")
    assert (adding.keys, adding.newest) == (("a", "b"), "b")
    assert wanted(ROTATING, adding, taken=False, now=NOW, fresh="c") == adding
    leading = wanted(ROTATING, adding, taken=True, now=NOW, fresh="c")
    assert (leading.keys, leading.newest) == (("b", "a"), "b")
    almost = NOW + 599.0
    assert wanted(ROTATING, leading, taken=True, now=almost, fresh="c") == leading
    done = wanted(ROTATING, leading, taken=True, now=NOW + 600.0, fresh="c")
    assert done.keys == ("b",)
    assert wanted(ROTATING, done, taken=True, now=NOW + 86400.0, fresh="c") == done


def test_another_id_in_the_middle_of_a_rotation_waits_until_the_old_key_has_had_its_overlap() -> None:
    leading = Keys(keys=("b", "a"), rotation="two", leading_since=NOW)
    third = fleet_of(auth={"rotate": {"id": "three"}, "overlap": "10m"})
    assert wanted(third, leading, taken=True, now=NOW + 599.0, fresh="c") == leading
    done = wanted(third, leading, taken=True, now=NOW + 600.0, fresh="c")
    assert wanted(third, done, taken=True, now=NOW + 601.0, fresh="c").keys == ("b", "c")


def test_another_id_before_every_proxy_takes_the_new_key_leaves_the_key_in_use_valid() -> None:
    adding = Keys(keys=("a", "b"), rotation="two")
    third = fleet_of(auth={"rotate": {"id": "three"}})
    assert wanted(third, adding, taken=False, now=NOW, fresh="c").keys == ("a", "c")


def test_the_fleet_keeps_the_id_it_was_made_with() -> None:
    made = wanted(ROTATING, None, taken=False, now=NOW, fresh="a")
    assert wanted(ROTATING, made, taken=True, now=NOW, fresh="b") == made


def test_a_secret_reads_back_as_it_was_written() -> None:
    for keys in (Keys(keys=("a",)), Keys(keys=("b", "a"), rotation="two", leading_since=NOW)):
        assert secret.read(secret.secret(ROTATING, keys)) == keys


def test_a_secret_of_ones_own_needs_nothing_but_keys() -> None:
    data = {"admin-keys": base64.b64encode(b"one\n\n two \n").decode()}
    assert secret.read({"metadata": {}, "data": data}) == Keys(keys=("one", "two"))
    for empty in ({}, {"admin-keys": ""}, {"admin-keys": "%%%"}):
        assert secret.read({"metadata": {}, "data": empty}) is None
