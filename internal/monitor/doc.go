// Package monitor answers over HTTP how a process of the mesh is, and what the mesh has
// to do: /healthz and /readyz for whoever starts and replaces processes, /metrics for
// Prometheus, /demand for whoever scales pools of nodes.
//
// It only looks. It changes nothing in the process, asks nothing of the broker, and
// keeps no figures of its own, so that what it says of the mesh is the same from every
// process that has the registry's view. It takes no credentials and shows no
// session, tool, call or argument. Settings and signals are its owner's.
package monitor
