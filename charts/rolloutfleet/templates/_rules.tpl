{{/* What the operator may do where its fleets are. */}}
{{- define "rolloutfleet.rules" -}}
- apiGroups: [rolloutfleet.dev]
  resources: [rolloutfleets]
  verbs: [get, list, watch]
- apiGroups: [rolloutfleet.dev]
  resources: [rolloutfleets/status]
  verbs: [get, patch, update]
# Some clusters ask for this of whoever names a fleet as the owner of its children.
- apiGroups: [rolloutfleet.dev]
  resources: [rolloutfleets/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Engines that others run come and go.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# The keys of fleets, each asked for by its name; never listed, never watched.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# A raised memory budget reaches a running proxy.
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
# Claims grow with storage.size; they are made by StatefulSets, and nobody but you removes them.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, watch, create, patch]
{{- end -}}

{{/* What it may do with what has no namespace, or is in others; only where it serves them all. */}}
{{- define "rolloutfleet.clusterRules" -}}
# A lost node is told from a lost pod; a cordoned one is named, where volumes can't leave it.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list]
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
# An operator that serves one namespace is seen by its Lease, and left that namespace.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list]
{{- end -}}
