"""What /metrics says."""

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.fleets import ProxyProcess
from tests.waiting import PATIENCE


def samples(proxy: ProxyProcess) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each sample of /metrics by its name and its labels' values, in order of the labels."""
    text = httpx.get(f"{proxy.url}/metrics", timeout=PATIENCE).raise_for_status().text
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
