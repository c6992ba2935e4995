// Package monitor serves the state of a process and the demand of the mesh over HTTP: /healthz and
// /readyz for supervisors, /metrics for Prometheus, /demand for autoscalers.
//
// It only reads. It changes nothing in the process, asks nothing of the broker, and keeps no
// figures of its own, so that every process with the registry's view shows the same mesh. It takes
// no credentials and shows no session, tool, call or argument. Settings and signals belong to its
// owner.
package monitor
