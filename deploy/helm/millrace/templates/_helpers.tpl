{{/* A node can run only one agent, as the maps are pinned in one directory. So names do not contain the release's name. */}}
{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
{{- end }}

{{/* The port of the probes: that of the setting `healthz-bind-address`, or its default. */}}
{{- define "millrace.healthPort" -}}
{{- index .Values.config "healthz-bind-address" | default ":10256" | splitList ":" | last -}}
{{- end }}
