// Package cgroup keeps processes within an amount of memory, and within a number, by
// the kernel's own accounting, where the machine lets this process make control groups
// of its own. A [Tree] is the place below this process's group; a [Group] holds one
// worker with all that it starts. Version 2 is used where it has the memory controller,
// else version 1.
//
// The package must never touch a group that it did not make, but for what turns
// the controllers on below the process's own; never move a process that is
// not this one or given to it by name; and never fail anybody's start: where no
// groups are to be had, [Tree.Why] says so and nothing else is different.
package cgroup
