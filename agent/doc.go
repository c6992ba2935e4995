// Package agent is one machine of the mesh: a host whose handlers are Python
// tools and programs, the executor that runs them, and the installs that decide which. It
// answers the registry's questions and the administrative requests.
//
// It is the only package that knows all of these, and it adds no logic of its
// own to a call: it wires them together. It never reads the environment.
package agent
