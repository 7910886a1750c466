"""Pictures of the records, as SVG."""
