{{/* A node can run only one agent, as the maps are pinned in one directory. So names do not contain the release's name. */}}
{{- define "millrace.selectorLabels" -}}
app.kubernetes.io/name: millrace
{{- end }}

{{- define "millrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "millrace.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A digest identifies the image by itself; a tag can be moved to another one. */}}
{{- define "millrace.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The setting `healthz-bind-address`, or its default. YAML reads an unquoted `off` as false. */}}
{{- define "millrace.healthAddress" -}}
{{- $address := "[::]:10256" -}}
{{- if hasKey .Values.config "healthz-bind-address" -}}
{{- $address = index .Values.config "healthz-bind-address" -}}
{{- end -}}
{{- if kindIs "bool" $address }}off{{ else }}{{ $address }}{{ end }}
{{- end }}

{{/* The settings as the agent reads them. */}}
{{- define "millrace.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if hasKey $config "healthz-bind-address" -}}
{{- $_ := set $config "healthz-bind-address" (include "millrace.healthAddress" .) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* Where the kubelet sends a probe. The agent reserves connections for local clients. */}}
{{- define "millrace.probe" -}}
{{- $address := include "millrace.healthAddress" .root -}}
{{- $port := $address | splitList ":" | last -}}
{{- $host := trimSuffix (printf ":%s" $port) $address | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "" "::" "0.0.0.0") }}{{ $host = "localhost" }}{{ end -}}
httpGet: {path: {{ .path }}, port: {{ $port }}, host: {{ $host | quote }}}
{{- end }}

{{- define "millrace.ingressSelectorLabels" -}}
app.kubernetes.io/name: millrace-ingress
{{- end }}

{{- define "millrace.ingressLabels" -}}
{{ include "millrace.labels" . | replace "app.kubernetes.io/name: millrace\n" "app.kubernetes.io/name: millrace-ingress\n" }}
{{- end }}

{{/* The settings as the Ingress proxy reads them; Service and Lease are in the release's namespace. */}}
{{- define "millrace.ingressConfig" -}}
{{- $config := deepCopy .Values.ingress.config -}}
{{- $own := printf "%s/millrace-ingress" .Release.Namespace -}}
{{- if not (or (hasKey $config "publish-service") (hasKey $config "status-address")) -}}
{{- $_ := set $config "publish-service" $own -}}
{{- end -}}
{{- if and (ne .Release.Namespace "kube-system") (not (hasKey $config "status-lease")) -}}
{{- $_ := set $config "status-lease" $own -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "millrace.controllerSelectorLabels" -}}
app.kubernetes.io/name: millrace-controller
{{- end }}

{{- define "millrace.controllerLabels" -}}
{{ include "millrace.labels" . | replace "app.kubernetes.io/name: millrace\n" "app.kubernetes.io/name: millrace-controller\n" }}
{{- end }}

{{/* The settings as the controller reads them; its Lease is in the release's namespace. */}}
{{- define "millrace.controllerConfig" -}}
{{- $config := deepCopy .Values.controller.config -}}
{{- if and (ne .Release.Namespace "kube-system") (not (hasKey $config "controller-lease")) -}}
{{- $_ := set $config "controller-lease" (printf "%s/millrace-controller" .Release.Namespace) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}
