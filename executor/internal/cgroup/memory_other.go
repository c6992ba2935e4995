//go:build !linux

package cgroup

func machineMemory() int64 { return 0 }
