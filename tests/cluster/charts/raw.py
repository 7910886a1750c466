"""The operator for `kubectl apply`, without Helm: `make chart` writes it to examples/kubernetes/operator.yaml."""

import re
from typing import Final

from tests.cluster.charts.helm import NAMESPACE, template
from tests.paths import ROOT

FILE: Final = ROOT / "examples" / "kubernetes" / "operator.yaml"

_BEGINNING: Final = f"""\
# Made from the chart by `make chart`. The operator, serving every namespace. The definition goes before it:
#   kubectl apply -f crds/ -f examples/kubernetes/operator.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_HELMS_OWN: Final = re.compile(
    r"^(?:# Source: .*| *(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): .*)\n", re.MULTILINE
)


def page() -> str:
    return _BEGINNING + _HELMS_OWN.sub("", template({"crds": {"enabled": False, "keep": False}}))


if __name__ == "__main__":
    print(page(), end="")
