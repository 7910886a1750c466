{{/* What everything of this release is called; short enough for what is put behind it. */}}
{{- define "rolloutfleet.name" -}}
{{- printf "%s-operator" (trimSuffix "-operator" .Release.Name | trunc 46 | trimSuffix "-") -}}
{{- end -}}

{{- define "rolloutfleet.selector" -}}
app.kubernetes.io/name: rolloutfleet-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rolloutfleet.labels" -}}
{{ include "rolloutfleet.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: rolloutfleet
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "rolloutfleet.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rolloutfleet.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the ServiceAccount that is there, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image in full. Takes a list: the root, and one of .Values.images. */}}
{{- define "rolloutfleet.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default $root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}
