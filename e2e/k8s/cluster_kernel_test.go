package k8s

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// tunables are settings of the machine's kernel that a kubelet changes outside of its namespace. Other tests on this
// machine see them: with vm.overcommit_memory 1 no allocation ever fails.
var tunables = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// found are their values before the run.
var found map[string]string

func readTunables() (map[string]string, error) {
	values := make(map[string]string)
	for _, name := range tunables {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return nil, err
		}
		values[name] = strings.TrimSpace(string(value))
	}
	return values, nil
}

// restoreTunables undoes the changes of the run.
func restoreTunables() error {
	now, err := readTunables()
	if err != nil {
		return err
	}
	var errs []error
	for name, value := range found {
		if now[name] != value {
			errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
		}
	}
	return errors.Join(errs...)
}

// changedTunables are those that differ from their values before the run.
func changedTunables() (all []string) {
	now, err := readTunables()
	if err != nil {
		return []string{err.Error()}
	}
	for name, value := range found {
		if now[name] != value {
			all = append(all, fmt.Sprintf("the kernel's setting %s is %s, and was %s", name, now[name], value))
		}
	}
	slices.Sort(all)
	return all
}
