// Package cgroup limits the memory and the number of processes by the kernel's accounting,
// where this process may make control groups. A [Tree] is the place below this process's group;
// a [Group] holds one worker with all its processes. Version 2 is used where it has the memory
// controller, else version 1.
//
// The package touches only groups that it made, except to turn controllers on below the
// process's own group. It moves only this process and those passed to it. It never fails a
// start: without groups, [Tree.Why] is the reason and everything else works.
package cgroup
