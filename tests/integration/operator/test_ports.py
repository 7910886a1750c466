"""The ports of local fleets, chosen without starting any."""

import random
import socket
from pathlib import Path

from rolloutfleet_operator.local.ports import Claims, choose_ports

NAMES = ("engine-0", "gateway", "proxy-0")


def choose(folder: Path, claims: Claims) -> dict[str, int]:
    folder.mkdir(exist_ok=True)
    # All draw the same ports in the same order.
    return choose_ports(folder / "ports.json", NAMES, random.Random(1), renew=False, claims=claims)


def test_fleets_that_start_together_get_ports_of_their_own_before_any_of_them_listens(tmp_path: Path) -> None:
    claims = [Claims(), Claims()]
    first, second = (choose(tmp_path / str(number), each) for number, each in enumerate(claims))
    assert len({*first.values(), *second.values()}) == 2 * len(NAMES)
    claims[0].release()
    assert choose(tmp_path / "0", claims[0]) == first
    third = choose(tmp_path / "2", claims[1])
    assert not {*first.values(), *second.values()} & {*third.values()}, "a fleet that is started again holds them too"
    for each in claims:
        each.release()


def test_a_fleets_port_stays_its_own_where_a_program_uses_it_for_udp_meanwhile(tmp_path: Path) -> None:
    claims = Claims()
    before = choose(tmp_path, claims)
    claims.release()
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", before["gateway"]))
        assert choose(tmp_path, claims) == before
    claims.release()
