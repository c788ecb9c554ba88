{{/* A node can run only one agent, as the maps are pinned in one directory. So names do not contain the release's name. */}}
{{- define "millrace.selectorLabels" -}}
app.kubernetes.io/name: millrace
{{- end }}

{{/* Labels of an object of `name`, which is what its selector has. */}}
{{- define "millrace.labelsOf" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "millrace.labels" -}}
{{ include "millrace.labelsOf" (dict "root" . "name" "millrace") }}
{{- end }}

{{/* A digest identifies the image by itself; a tag can be moved to another one. */}}
{{- define "millrace.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry | default .Values.global.imageRegistry }}{{ . }}/{{ end }}{{ $image.repository }}
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

{{/* The URL of the API server in the kubeconfig that kubeadm publishes, or nothing. */}}
{{- define "millrace.serverOfKubeconfig" -}}
{{- with (fromYaml .).clusters }}{{ (first .).cluster.server }}{{ end }}
{{- end }}

{{/* The URL of the API server in kubeadm's ClusterConfiguration, or nothing. */}}
{{- define "millrace.serverOfClusterConfiguration" -}}
{{- with (fromYaml .).controlPlaneEndpoint }}https://{{ . }}{{ if not (regexMatch ":[0-9]+$" .) }}:6443{{ end }}{{ end }}
{{- end }}

{{/* The URL of the API server where kubeadm writes it down. Without a cluster, as in `helm template`, nothing. */}}
{{- define "millrace.serverOfKubeadm" -}}
{{- $info := lookup "v1" "ConfigMap" "kube-public" "cluster-info" | default dict -}}
{{- $server := include "millrace.serverOfKubeconfig" (dig "data" "kubeconfig" "" $info) -}}
{{- if not $server -}}
{{- $kubeadm := lookup "v1" "ConfigMap" "kube-system" "kubeadm-config" | default dict -}}
{{- $server = include "millrace.serverOfClusterConfiguration" (dig "data" "ClusterConfiguration" "" $kubeadm) -}}
{{- end -}}
{{- $server -}}
{{- end }}

{{/* The settings as the agent reads them. */}}
{{- define "millrace.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $hasSource := or (index $config "api-servers") (index $config "kubeconfig") (index $config "manifests") -}}
{{- if not (or $hasSource (contains "--api-server" (join " " .Values.extraArgs))) -}}
{{- $server := include "millrace.serverOfKubeadm" . -}}
{{- if not $server -}}
{{- fail "config.api-servers is not set, and kubeadm's ConfigMap kube-public/cluster-info, which would name the API server, is not there. Set its URL, which must not be a Service address because those work only once Millrace runs: --set config.api-servers=https://10.0.0.1:6443" -}}
{{- end -}}
{{- $_ := set $config "api-servers" $server -}}
{{- end -}}
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

{{/* A field of a probe that the values set replaces the chart's own. */}}
{{- define "millrace.merged" -}}
{{- toYaml (mergeOverwrite (fromYaml .own) (deepCopy .values)) -}}
{{- end }}

{{/* Capabilities and user of processes that need nothing of the node. */}}
{{- define "millrace.unprivileged" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A number of seconds, also of a duration such as 1m30s. */}}
{{- define "millrace.seconds" -}}
{{- $text := . | toString -}}
{{- $sum := 0 -}}
{{- if regexMatch "^[0-9.e+]+$" $text -}}
{{- $sum = . | int -}}
{{- else -}}
{{- range regexFindAll "[0-9]+(ms|[hms])" $text -1 -}}
{{- $number := regexFind "^[0-9]+" . | int -}}
{{- if hasSuffix "h" . }}{{ $sum = add $sum (mul 3600 $number) }}
{{- else if hasSuffix "m" . }}{{ $sum = add $sum (mul 60 $number) }}
{{- else if not (hasSuffix "ms" .) }}{{ $sum = add $sum $number }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $sum -}}
{{- end }}

{{/* Several proxies in a cluster need different names. */}}
{{- define "millrace.ingressName" -}}
{{ .Values.ingress.nameOverride | default "millrace-ingress" }}
{{- end }}

{{- define "millrace.ingressSelectorLabels" -}}
app.kubernetes.io/name: {{ include "millrace.ingressName" . }}
{{- end }}

{{- define "millrace.ingressLabels" -}}
{{ include "millrace.labelsOf" (dict "root" . "name" (include "millrace.ingressName" .)) }}
{{- end }}

{{/* The settings as the Ingress proxy reads them; Service and Lease are in the release's namespace. */}}
{{- define "millrace.ingressConfig" -}}
{{- $config := deepCopy .Values.ingress.config -}}
{{- $name := include "millrace.ingressName" . -}}
{{- $own := printf "%s/%s" .Release.Namespace $name -}}
{{- $class := .Values.ingress.class -}}
{{- if not (hasKey $config "ingress-class") }}{{ if ne $class.name "millrace" }}{{ $_ := set $config "ingress-class" $class.name }}{{ end }}{{ end -}}
{{- if ne $class.controller "millrace.io/ingress-controller" }}{{ $_ := set $config "ingress-controller" $class.controller }}{{ end -}}
{{- if not (or (hasKey $config "publish-service") (hasKey $config "status-addresses")) -}}
{{- $_ := set $config "publish-service" $own -}}
{{- end -}}
{{- if and (ne $own "kube-system/millrace-ingress") (not (hasKey $config "status-lease")) -}}
{{- $_ := set $config "status-lease" $own -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "millrace.controllerSelectorLabels" -}}
app.kubernetes.io/name: millrace-controller
{{- end }}

{{- define "millrace.controllerLabels" -}}
{{ include "millrace.labelsOf" (dict "root" . "name" "millrace-controller") }}
{{- end }}

{{/* The settings as the controller reads them; its Lease is in the release's namespace. */}}
{{- define "millrace.controllerConfig" -}}
{{- $config := deepCopy .Values.controller.config -}}
{{- if and (ne .Release.Namespace "kube-system") (not (hasKey $config "controller-lease")) -}}
{{- $_ := set $config "controller-lease" (printf "%s/millrace-controller" .Release.Namespace) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "millrace.agentSecurity" -}}
# The pinned maps and programs belong to root.
runAsUser: 0
readOnlyRootFilesystem: true
{{- if .Values.privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN, PERFMON{{ if .Values.bgp.passive }}, NET_BIND_SERVICE{{ end }}]
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{- define "millrace.agentProbes" -}}
startupProbe:
  {{ include "millrace.probe" (dict "root" . "path" "/livez") }}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  {{ include "millrace.probe" (dict "root" . "path" "/livez") }}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{ include "millrace.probe" (dict "root" . "path" "/healthz") }}
  timeoutSeconds: 5
{{- end }}

{{/* Probes of a process other than the agent; `period` is that of the readiness probe. */}}
{{- define "millrace.healthProbes" -}}
startupProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /livez, port: health}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: {{ .period }}
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}
