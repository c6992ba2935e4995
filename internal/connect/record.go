package connect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
)

// Record is written by `mesh up` so that other commands find it: one file per mesh in the user's
// state folder, removed with the mesh.
type Record struct {
	URL     string    `json:"url"`
	PID     int       `json:"pid"`
	Process string    `json:"process"` // tells this process from a later one of its pid
	DataDir string    `json:"data_dir"`
	Listen  string    `json:"listen"`         // of the NATS server, as it was asked for
	Keys    bool      `json:"keys,omitempty"` // it has keys, in the data folder
	Started time.Time `json:"started"`
}

// State is a folder of records, of one user; "" for one that has none.
type State string

// Lookup returns a variable of an environment in the form of os.Environ; "" if it is not
// set.
func Lookup(env []string, name string) string {
	value, _ := LookupEnv(env, name)
	return value
}

// LookupEnv is [Lookup], and reports whether the variable is set.
func LookupEnv(env []string, name string) (value string, set bool) {
	for i := len(env) - 1; i >= 0; i-- { // the last one counts
		if value, set = strings.CutPrefix(env[i], name+"="); set {
			return value, true
		}
	}
	return "", false
}

// StateOf is $XDG_STATE_HOME/toolmesh, else ~/.local/state/toolmesh.
func StateOf(env []string) State {
	if dir := Lookup(env, "XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return State(filepath.Join(dir, "toolmesh"))
	}
	if home := Lookup(env, "HOME"); filepath.IsAbs(home) {
		return State(filepath.Join(home, ".local", "state", "toolmesh"))
	}
	return ""
}

// OwnerKey reads or makes the key that owns this user's indexes from folders. The error is
// invalid_request.
func (s State) OwnerKey() (nkeys.KeyPair, error) {
	if s == "" {
		return nil, failed(toolmesh.CodeInvalidRequest, errors.New("the key that owns what you install has no place: set HOME or XDG_STATE_HOME"))
	}
	return access.OpenOwner(filepath.Join(string(s), "owner.nk"))
}

const recordEnd = ".mesh.json"

// File is where a record is. Processes of several containers may have one pid.
func (s State) File(r Record) string {
	return filepath.Join(string(s), strconv.Itoa(r.PID)+"-"+strings.ReplaceAll(r.Process, "/", "-")+recordEnd)
}

// Write puts a record where [State.Running] finds it, in place of the one of the process that
// had its data folder before.
func (s State) Write(r, before Record) error {
	if s == "" {
		return errors.New("write the state file: HOME is no absolute path")
	}
	for path, other := range s.records() {
		if other == before {
			_ = os.Remove(path)
		}
	}
	return r.Write(s.File(r))
}

// Write writes the record to a file.
func (r Record) Write(path string) error {
	data, _ := json.Marshal(r) // of texts, numbers and a time
	err := os.MkdirAll(filepath.Dir(path), 0o700)
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

// ReadRecord reads a record; alive says that its process lives.
func ReadRecord(path string) (r Record, alive bool, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil || r.PID <= 0 {
		return r, false, cmp.Or(err, errors.New("no record"))
	}
	return r, r.alive(), nil
}

func (r Record) alive() bool {
	id := ProcessID(r.PID)
	return id != "" && id == r.Process
}

// Remove takes a record away.
func (s State) Remove(r Record) {
	if s != "" {
		_ = os.Remove(s.File(r))
	}
}

// records are all records, also of processes that are gone, by their files. None is removed: in
// a container with this home the processes outside of it cannot be seen.
func (s State) records() map[string]Record {
	all := map[string]Record{}
	if s == "" {
		return all
	}
	names, _ := fs.Glob(os.DirFS(string(s)), "*"+recordEnd)
	for _, name := range names {
		path := filepath.Join(string(s), name)
		if r, _, err := ReadRecord(path); err == nil {
			all[path] = r
		}
	}
	return all
}

// Running lists the meshes with a live process, the latest first.
func (s State) Running() []Record {
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.records())), func(r Record) bool { return !r.alive() })
	slices.SortFunc(all, func(x, y Record) int { return y.Started.Compare(x.Started) })
	return all
}

// key is the file with the key of a role for the mesh at some comma-separated addresses,
// if `mesh up` of this user started it with keys; else "". All addresses must be that one
// server: another one could pass the server's challenge on to this process, and log in with
// its signature.
func (s State) key(addresses string, role access.Role) string {
	for _, r := range s.Running() {
		other := func(address string) bool { return !sameServer(r.URL, strings.TrimSpace(address)) }
		if r.Keys && !slices.ContainsFunc(strings.Split(addresses, ","), other) {
			return access.File(r.DataDir, role)
		}
	}
	return ""
}

// sameServer reports whether two addresses are one server of this machine. One
// with credentials of its own needs no key.
func sameServer(a, b string) bool {
	split := func(address string) (port string, ok bool) {
		u, err := parse(address)
		if err != nil || u.User != nil {
			return "", false
		}
		ip := net.ParseIP(u.Hostname())
		return cmp.Or(u.Port(), "4222"), u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}
	x, hereX := split(a)
	y, hereY := split(b)
	return a == b || hereX && hereY && x == y
}
