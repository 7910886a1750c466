"""What a proxy does not load."""

import subprocess
import sys


def test_a_proxy_loads_no_client_of_inference_servers() -> None:
    program = "import rolloutfleet_proxy.worker, renderers; print('openai' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
