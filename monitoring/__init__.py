"""What Prometheus and Grafana are told about fleets: alert rules and a dashboard, made from the metrics' own names.

    python -m monitoring

writes them for the chart and for `rolloutfleet prometheus`; `make chart` does so too.
"""
