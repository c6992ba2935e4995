package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	return r.write(s.file(r))
}

func (r record) write(path string) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path+".part", append(data, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".part", path)
	}
	if err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return nil
}

// readRecord reads a record; alive says that its process lives.
func readRecord(path string) (r record, alive bool, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil || r.PID <= 0 {
		return r, false, cmp.Or(err, errors.New("no record"))
	}
	id := processID(r.PID)
	return r, id != "" && id == r.Process, nil
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
	names, _ := fs.Glob(os.DirFS(string(s)), "*"+recordEnd)
	var all []record
	for _, name := range names {
		path := filepath.Join(string(s), name)
		switch r, alive, err := readRecord(path); {
		case err != nil:
		case alive:
			all = append(all, r)
		default:
			_ = os.Remove(path)
		}
	}
	slices.SortFunc(all, func(x, y record) int { return y.Started.Compare(x.Started) })
	return all
}
