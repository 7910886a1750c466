"""What the operator is told: flags over the environment, and clear words for what can't be used."""

import argparse
from collections.abc import Mapping, Sequence

import pytest

from rolloutfleet_operator import cli
from rolloutfleet_operator.cluster.settings import BadSettings, OperatorSettings, add_flags, read


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> OperatorSettings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read(parser.parse_args(arguments), environment)


def test_flags_win_over_the_environment_and_that_over_defaults() -> None:
    environment = {
        "ROLLOUTFLEET_OPERATOR_PROXY_IMAGE": "from-environment",
        "ROLLOUTFLEET_OPERATOR_LEASE_NAME": "lease",
        "ROLLOUTFLEET_OPERATOR_NAMESPACE": "",
    }
    told = parse(["--proxy-image", "from-flag", "--max-concurrent-disruptions=3"], environment)
    assert (told.proxy_image, told.lease_name, told.max_concurrent_disruptions) == ("from-flag", "lease", 3)
    assert told.namespace is None
    assert told.cluster_domain == OperatorSettings().cluster_domain


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-concurrent-disruptions=0"], "--max-concurrent-disruptions: "),
        (["--max-concurrent-disruptions=many"], "--max-concurrent-disruptions: "),
        (["--listen=8080"], "--listen: .*write it like 0.0.0.0:8080"),
        (["--log-format=xml"], "--log-format: "),
    ],
)
def test_what_cant_be_used_is_named_as_it_was_given(flags: list[str], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        parse(flags, {})


def test_help_says_every_flag_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    said = capsys.readouterr().out
    for name in OperatorSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in said


def test_crd_prints_the_resource(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["crd"])
    assert ended.value.code == 0
    assert "name: rolloutfleets.rolloutfleet.dev" in capsys.readouterr().out
