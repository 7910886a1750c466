"""R1's table has what was printed, what was seen, and the bound, cell by cell."""

from dataclasses import asdict

from benchmarks.rigs import r1


def point(who: str, rate: float, *, errors: int = 0) -> dict[str, object]:
    rate_printed, p99_printed = r1.PRINTED[1, 1600] if who == "proxy" else (None, None)
    return asdict(
        r1.Point(
            who=who,
            servers=1,
            in_flight=1600,
            rate=rate,
            bound=3200.0,
            p50=0.5,
            p99=1.25,
            errors=errors,
            cores=0.5,
            cpu_per_request=1234.5,
            printed_rate=rate_printed,
            printed_p99=p99_printed,
        )
    )


def test_a_row_stands_beside_what_was_printed() -> None:
    row = r1.table([point("gateway", 3100), point("proxy", 700), point("shape", 0, errors=9)]).splitlines()[-1]
    assert row == "| 1 | 1,600 | 3,200 | 3,100 | 62, 32.0 s | 0, 9 errors | 700, 1.2 s, 0.50, 1,234 |"
