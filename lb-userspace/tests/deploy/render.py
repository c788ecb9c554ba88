"""Prints what Helm makes of a chart (the argument) with values (JSON on standard input)."""

import json
import sys

import helm_python

chart, values = sys.argv[1], json.load(sys.stdin)
linted = helm_python.lint(chart, values, strict=True)
if linted["errors"]:
    sys.exit("\n".join(map(str, linted["errors"])))
with helm_python.Chart.load(chart) as chart:
    chart.validate_schema(values)
    rendered = chart.render(values, name="millrace", namespace="kube-system")
for file, text in sorted(rendered.items()):
    if file.endswith(".yaml"):
        print("---", text, sep="\n")
