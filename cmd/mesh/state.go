package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
)

// record is what `mesh up` leaves for other commands to find it by: one file per
// mesh in the user's state folder, gone when the mesh is.
type record struct {
	URL     string    `json:"url"`
	PID     int       `json:"pid"`
	Process string    `json:"process"` // tells this process from a later one of its pid
	DataDir string    `json:"data_dir"`
	Started time.Time `json:"started"`
}

// stateFolder is a folder of records.
type stateFolder string

// stateFolder is $XDG_STATE_HOME/toolmesh, else ~/.local/state/toolmesh.
func (a *app) stateFolder() stateFolder {
	if dir := process.Lookup(a.env, "XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return stateFolder(filepath.Join(dir, "toolmesh"))
	}
	if home := process.Lookup(a.env, "HOME"); home != "" {
		return stateFolder(filepath.Join(home, ".local", "state", "toolmesh"))
	}
	return ""
}

const recordEnd = ".mesh.json"

func (s stateFolder) file(r record) string {
	return filepath.Join(string(s), strconv.Itoa(r.PID)+recordEnd)
}

// write puts a record where [stateFolder.running] finds it.
func (s stateFolder) write(r record) error {
	if s == "" {
		return errors.New("write the state file: HOME is not set")
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	part := s.file(r) + ".part"
	if err := os.WriteFile(part, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	if err := os.Rename(part, s.file(r)); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return nil
}

func (s stateFolder) remove(r record) {
	if s != "" {
		_ = os.Remove(s.file(r))
	}
}

// running lists the meshes whose process lives, the latest first. Records of
// dead ones are removed.
func (s stateFolder) running() []record {
	if s == "" {
		return nil
	}
	entries, err := os.ReadDir(string(s))
	if err != nil {
		return nil
	}
	var all []record
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordEnd) {
			continue
		}
		path := filepath.Join(string(s), e.Name())
		data, err := os.ReadFile(path)
		var r record
		if err != nil || json.Unmarshal(data, &r) != nil || r.PID <= 0 {
			continue
		}
		if processID(r.PID) != r.Process {
			_ = os.Remove(path)
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y record) int { return cmp.Compare(y.Started.UnixNano(), x.Started.UnixNano()) })
	return all
}

// check is why nothing can be written there; nil if something can.
func (s stateFolder) check() error {
	if s == "" {
		return errors.New("HOME is not set")
	}
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(s), "check")
	if err != nil {
		return err
	}
	_ = f.Close()
	return os.Remove(f.Name())
}

// newest returns the mesh that was started last.
func (s stateFolder) newest() (record, bool) {
	all := s.running()
	if len(all) == 0 {
		return record{}, false
	}
	return all[0], true
}
