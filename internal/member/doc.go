// Package member joins a process to the mesh. A [Member] is the common part of a router and an
// agent: one bus with a client, the view of the registry and the answers from it, the tasks that
// run here, and the node. It knows nothing of executors, installs and calls that wait: these belong
// to its owners, which also guard the order of its methods.
package member
