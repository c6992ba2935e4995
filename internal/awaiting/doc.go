// Package awaiting tells the mesh which calls and tasks of a process wait for a node, so that
// routers and autoscalers see the demand of each pool: the view of package registry adds up
// the sums of all processes. It must never hold a lease, or serve anything.
package awaiting
