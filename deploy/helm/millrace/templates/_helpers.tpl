{{/* There can be one on a node: its maps are in one place. So names do not depend on the release's. */}}
{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
{{- end }}

{{/* The port of which probes ask: that of the setting, if it is given. */}}
{{- define "millrace.healthPort" -}}
{{- index .Values.config "healthz-bind-address" | default ":10256" | splitList ":" | last -}}
{{- end }}
