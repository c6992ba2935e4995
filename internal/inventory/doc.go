// Package inventory lists a mesh for administrators: its nodes, indexes and sessions, in the JSON
// form that `mesh nodes|indexes|session ls --json` and the gateway print.
package inventory
